// Burns CPU in burn(), below middle() and outer(), for ever; through Array.map, which is native code.
function burn(n) {
  let sum = 0;
  for (let i = 0; i < n; i++) sum += i % 7;
  return sum;
}
function middle(n) {
  return [n].map(burn)[0];
}
function outer() {
  for (;;) middle(200000);
}
console.log('ready');
outer();
