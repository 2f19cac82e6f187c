/** Burns CPU in burn(), below middle(), for ever. */
public class Planted {
    static long burn(long n) {
        long sum = 0;
        for (long i = 0; i < n; i++) sum += i % 7;
        return sum;
    }

    static long middle(long n) {
        return burn(n) + 1;
    }

    public static void main(String[] arguments) {
        long sum = 0;
        System.out.println("ready");
        while (sum >= 0) sum += middle(200000) & 1;
    }
}
