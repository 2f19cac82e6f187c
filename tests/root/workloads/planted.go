package main

import "fmt"

//go:noinline
func burn(n int) int {
	s := 0
	for i := 0; i < n; i++ {
		s += i % 7
	}
	return s
}

type worker struct{ n int }

//go:noinline
func (w *worker) run() int {
	s := 0
	for {
		s += burn(w.n)
		if s < 0 {
			return s
		}
	}
}

func main() {
	fmt.Println("ready")
	go (&worker{200000}).run()
	(&worker{200000}).run()
}
