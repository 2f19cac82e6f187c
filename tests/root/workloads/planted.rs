// Burns CPU in a method of a generic type, called through a closure, for ever.
use std::hint::black_box;

struct Worker<T> {
    turns: T,
}

trait Burns {
    fn burn(&self) -> u64;
}

impl Burns for Worker<u64> {
    #[inline(never)]
    fn burn(&self) -> u64 {
        (0..self.turns).fold(0, |sum, i| black_box(sum + i % 7))
    }
}

#[inline(never)]
fn repeat<F: Fn() -> u64>(work: F) -> u64 {
    let mut sum = 0;
    loop {
        sum ^= black_box(work());
        if sum == u64::MAX {
            return sum;
        }
    }
}

fn main() {
    println!("ready");
    let worker = Worker { turns: 200_000u64 };
    repeat(|| worker.burn());
}
