/* exp, log and tanh in double precision, to the last bits: what is made of them in float32 is what
 * other libraries make. */

/* exp(x) for x <= 0, to the last bits of a double. */
static inline double NAME(exponential)(double x) {
    x = x < -200 ? -200 : x;
    double n = __builtin_rint(x * 1.4426950408889634074);
    double r = x - n * 6.93147180369123816490e-01;
    r = r - n * 1.90821492927058770002e-10;
    double p = 1.0 / 6227020800.0;
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    union { double d; uint64_t i; } bits = {n + 6755399441055744.0}; /* the integer n in the low bits */
    union { uint64_t i; double d; } scale = {(bits.i + 1023) << 52};
    return p * scale.d;
}

/* exp(x) for x <= 0 in float32, with a relative error below 4e-7; what is below exp(-87) is taken for it. */
__attribute__((always_inline)) static inline Sixteen NAME(fast_exponential)(Sixteen x) {
    const Sixteen none = {0}, least = none - 87.0f;
    x = HIGHER(least, x);
    Sixteen n = x * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: the integer is in the low bits */
    Whole scale = ((Whole)n + 127) << 23;
    n -= 12582912.0f;
    Sixteen r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    Sixteen p = r * (1.0f / 720.0f) + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p * (Sixteen)scale;
}

/* log(x) for normal x > 0, to the last bits of a double: x = 2^n m, and with s = (m - 1) / (m + 1),
 * log m = 2 (s + s^3 / 3 + s^5 / 5 + ...). */
static inline double NAME(logarithm)(double x) {
    union { double d; int64_t i; } bits = {x};
    const int64_t root = 0x3fe6a09e667f3bcd; /* sqrt(1/2), the least m */
    int64_t n = (bits.i - root) >> 52;
    bits.i -= n * ((int64_t)1 << 52);
    double s = (bits.d - 1) / (bits.d + 1), t = s * s;
    double p = 1.0 / 25.0;
    p = p * t + 1.0 / 23.0;
    p = p * t + 1.0 / 21.0;
    p = p * t + 1.0 / 19.0;
    p = p * t + 1.0 / 17.0;
    p = p * t + 1.0 / 15.0;
    p = p * t + 1.0 / 13.0;
    p = p * t + 1.0 / 11.0;
    p = p * t + 1.0 / 9.0;
    p = p * t + 1.0 / 7.0;
    p = p * t + 1.0 / 5.0;
    p = p * t + 1.0 / 3.0;
    p = p * t * s + s;
    return (double)n * 6.93147180559945286227e-01 + 2 * p;
}

static inline float NAME(sigmoid)(float x) {
    double e = NAME(exponential)(-__builtin_fabs((double)x));
    return (float)((x < 0 ? e : 1) / (1 + e));
}

static inline double NAME(hyperbolic_tangent)(double x) {
    double e = NAME(exponential)(-2 * __builtin_fabs(x));
    return __builtin_copysign((1 - e) / (1 + e), x);
}

/* The risk that the head of a veto sees in every row: a network with one hidden layer, in double precision
 * and in the same order for every number of rows. */
static void NAME(judge)(const Judge *m, int rows, const float *states, const double *numbers, double *risk) {
    for (int r = 0; r < rows; r += 2) {
        const int other = r + 1 < rows; /* two rows share what is read of the weights */
        const float *x = states + (size_t)r * m->width, *y = x + (size_t)other * m->width;
        const double *a = numbers + (size_t)r * m->numbers, *b = a + (size_t)other * m->numbers;
        double sums[2] = {0};
        for (int u = 0; u < m->room; u += JUDGED) {
            const float *weights = m->weights + u;
            Doubles one[JUDGED / 8], two[JUDGED / 8];
            memcpy(one, m->bias + u, sizeof(one)), memcpy(two, m->bias + u, sizeof(two));
            for (int i = 0; i < m->width + m->numbers; i++, weights += m->room) {
                int last = i - m->width;
                double v = last < 0 ? x[i] : a[last], w = last < 0 ? y[i] : b[last];
                for (int p = 0; p < JUDGED / 8; p++) {
                    Doubles some = __builtin_convertvector(EIGHT(weights + 8 * p), Doubles);
                    one[p] += some * v, two[p] += some * w;
                }
            }
            for (int p = 0; p < JUDGED; p++) {
                double v = one[p / 8][p % 8], w = two[p / 8][p % 8];
                sums[0] += (v > 0 ? v : 0) * m->out[u + p], sums[1] += (w > 0 ? w : 0) * m->out[u + p];
            }
        }
        for (int k = 0; k <= other; k++) {
            double sum = sums[k] + m->out[m->room], e = NAME(exponential)(-__builtin_fabs(sum));
            risk[r + k] = (sum < 0 ? e : 1) / (1 + e);
        }
    }
}
