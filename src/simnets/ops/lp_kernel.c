/* The weighted lp similarity of section 2, out[b, l] = -sum_i u[l, i] * |x[b, i] - z[l, i]|^p,
 * and its gradients, without anything of size rows x n x d.
 *
 * Plain C99 with the vector types that gcc and clang share. Compiled twice, for float and (with
 * -DLP_DOUBLE) for double, by _compiler.py; called through ctypes by _lp_kernel.py, which splits the work
 * among threads. Nothing here may be compiled with -ffast-math: NaN, infinity and the rounding trick
 * of exp2 are relied upon. Every sum runs in an order that does not depend on how the work was split.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef LP_DOUBLE
typedef double real;
typedef int64_t integer;
typedef uint64_t word;
enum { MANTISSA = 52, BIAS = 1023, LOG_TERMS = 11, EXP_DEGREE = 13 };
static const real MIN_NORMAL = 2.2250738585072014e-308;
static const word SQRT_HALF = UINT64_C(0x3fe6a09e667f3bcd);
#else
typedef float real;
typedef int32_t integer;
typedef uint32_t word;
enum { MANTISSA = 23, BIAS = 127, LOG_TERMS = 5, EXP_DEGREE = 7 };
static const real MIN_NORMAL = 1.17549435e-38f;
static const word SQRT_HALF = UINT32_C(0x3f3504f3);
#endif

/* As wide as the machine's registers, in bytes: wider would be split up badly. */
#if defined(__AVX512F__)
enum { VECTOR = 64 };
#elif defined(__AVX2__)
enum { VECTOR = 32 };
#else
enum { VECTOR = 16 };
#endif
enum {
    LANES = VECTOR / sizeof(real),
    GROUP = 4,               /* vectors that go through a function in step */
    ROWS = GROUP,            /* rows of x that are held in registers at a time */
    PANEL = 2,               /* vectors of templates likewise, in the forward pass */
    BLOCK = 128,             /* rows between two flushes of the gradients of z and u: a two-level sum */
    TILE_BYTES = 256 * 1024, /* working set of one backward tile */
};
typedef real vec __attribute__((vector_size(VECTOR)));
typedef word bits __attribute__((vector_size(VECTOR)));
typedef integer mask __attribute__((vector_size(VECTOR))); /* what comparing vectors gives: 0 or -1 */

#define INLINE static inline __attribute__((always_inline))

static const word SIGN = (word)1 << (8 * sizeof(real) - 1), ONE_BITS = (word)BIAS << MANTISSA;

INLINE vec splat(real a) { return a - (vec){0}; }
INLINE bits splat_bits(word a) { return a - (bits){0}; }
INLINE vec choose(mask where, vec a, vec b) { return (vec)(((mask)a & where) | ((mask)b & ~where)); }
INLINE vec magnitude(vec a) { return (vec)((bits)a & ~splat_bits(SIGN)); }

INLINE vec with_sign(vec a, vec sign) { return (vec)((bits)a | ((bits)sign & splat_bits(SIGN))); }

/* Written by lanes, which gcc and clang turn into the one instruction that is meant. */
INLINE vec root(vec a) {
    for (int k = 0; k < LANES; k++) a[k] = sizeof(real) == sizeof(float) ? sqrtf((float)a[k]) : sqrt(a[k]);
    return a;
}

/* Up to LANES numbers from memory, the rest zero; and back. */
INLINE vec load(const real *from, int lanes) {
    vec a = {0};
    if (lanes == LANES) memcpy(&a, from, sizeof a);
    else memcpy(&a, from, lanes * sizeof(real));
    return a;
}
INLINE void store(real *to, vec a, int lanes) {
    if (lanes == LANES) memcpy(to, &a, sizeof a);
    else memcpy(to, &a, lanes * sizeof(real));
}

/* ---- a^q for a vector of distances ---------------------------------------------------------------- */

/* The power and every constant that it needs, as vectors in memory: there are more of them than registers,
 * and an instruction reads its operand from here for nothing. */
typedef struct {
    vec q, q_high, q_low; /* q = q_high + q_low; q_high has so few bits that q_high * exponent is exact */
    vec log[LOG_TERMS], exp[EXP_DEGREE + 1];
    vec least, greatest; /* beyond these a^q is 0 or inf anyway */
    vec one, min_normal, tiny_scale, tiny_exponent, unbias, round;
    bits from_sqrt_half, to_float, fraction, sqrt_half, two_bias, special_offset;
    mask special_limit;
} power_table;

static void prepare_power(power_table *t, double q) {
    int exponent;
    const double step = MANTISSA == 52 ? 0x1p40 : 0x1p14, ln2 = 0.69314718055994530942;
    const double scaled = frexp(q, &exponent), high = ldexp(nearbyint(scaled * step) / step, exponent);
    const double greatest = exp2(2 * BIAS / q), limit = ldexp(2 - ldexp(1, -MANTISSA), BIAS);
    t->q = splat((real)q);
    t->q_high = splat((real)high);
    t->q_low = splat((real)(q - high));
    for (int k = 0; k < LOG_TERMS; k++) t->log[k] = splat((real)(2 / (ln2 * (2 * k + 1))));
    double c = 1;
    for (int k = 0; k <= EXP_DEGREE; c *= ln2 / ++k) t->exp[k] = splat((real)c);
    t->least = splat((real)exp2((4 - 2 * BIAS) / q));
    t->greatest = splat((real)(greatest < limit ? greatest : limit));
    t->one = splat(1);
    t->min_normal = splat(MIN_NORMAL);
    t->tiny_scale = splat((real)((word)1 << MANTISSA));
    t->tiny_exponent = splat(MANTISSA);
    t->unbias = splat((real)((word)1 << MANTISSA) + BIAS);
    t->round = splat((real)(1.5 * ((word)1 << MANTISSA)));
    t->from_sqrt_half = splat_bits(ONE_BITS - SQRT_HALF);
    t->to_float = splat_bits((word)(BIAS + MANTISSA) << MANTISSA);
    t->fraction = splat_bits(((word)1 << MANTISSA) - 1);
    t->sqrt_half = splat_bits(SQRT_HALF);
    t->two_bias = splat_bits((word)(2 * BIAS)) - (bits)t->round;
    t->special_offset = splat_bits(SIGN - 1);
    t->special_limit = (mask)splat_bits(((word)(2 * BIAS + 1) << MANTISSA) + SIGN - 1);
}

/* The polynomials below are long chains of dependent instructions; working on GROUP vectors in step gives
 * the processor independent ones to fill the gaps with. */
#define EACH _Pragma("GCC unroll 4") for (int g = 0; g < GROUP; g++)

/* log2(a) = exponent + fraction for 0 < a < inf, |fraction| <= 1/2; finite nonsense for other a.
 * With m in [sqrt(1/2), sqrt(2)) and s = (m - 1)/(m + 1): log2(m) = 2/ln(2) * (s + s^3/3 + s^5/5 + ...). */
INLINE void log2_parts(const vec a[GROUP], const power_table *t, vec exponent[GROUP], vec fraction[GROUP]) {
    vec b[GROUP], s[GROUP], sum[GROUP];
    mask tiny[GROUP];
    EACH b[g] = choose(a[g] > t->least, a[g], t->least);
    EACH b[g] = choose(b[g] < t->greatest, b[g], t->greatest);
    EACH tiny[g] = b[g] < t->min_normal;
    EACH b[g] = (vec)((bits)choose(tiny[g], b[g] * t->tiny_scale, b[g]) + t->from_sqrt_half);
    /* The biased exponent becomes a number by being the last bits of 2^MANTISSA + itself. */
    EACH exponent[g] = (vec)(((bits)b[g] >> MANTISSA) | t->to_float) - t->unbias;
    EACH exponent[g] -= (vec)(tiny[g] & (mask)t->tiny_exponent);
    EACH b[g] = (vec)(((bits)b[g] & t->fraction) + t->sqrt_half);
    EACH s[g] = (b[g] - t->one) / (b[g] + t->one);
    EACH b[g] = s[g] * s[g];
    EACH sum[g] = t->log[LOG_TERMS - 1];
    for (int k = LOG_TERMS - 2; k >= 0; k--) EACH sum[g] = sum[g] * b[g] + t->log[k];
    EACH fraction[g] = s[g] * sum[g];
}

/* 2^(q * (exponent + fraction)). As q * exponent is exact, the error stays a few units in the last place
 * over the whole range. Overflows to inf, underflows through the subnormal numbers to 0. */
INLINE void exp2_of_product(const vec exponent[GROUP], const vec fraction[GROUP], const power_table *t,
                            vec result[GROUP]) {
    vec low[GROUP], rounded[GROUP], sum[GROUP];
    EACH low[g] = t->q_low * exponent[g] + t->q * fraction[g];
    EACH rounded[g] = (t->q_high * exponent[g] + low[g]) + t->round; /* to an integer, in the last bits */
    EACH low[g] += t->q_high * exponent[g] - (rounded[g] - t->round);
    EACH sum[g] = t->exp[EXP_DEGREE];
    for (int k = EXP_DEGREE - 1; k >= 0; k--) EACH sum[g] = sum[g] * low[g] + t->exp[k];
    /* 2^k in two factors, each a normal number: their biased exponents are the halves of k + 2 BIAS. */
    EACH {
        bits k = (bits)rounded[g] + t->two_bias, half = k >> 1;
        result[g] = sum[g] * (vec)(half << MANTISSA) * (vec)((k - half) << MANTISSA);
    }
}

/* 0, inf and NaN to any power q > 0 are themselves. */
INLINE vec keep_special(vec a, vec power, const power_table *t) {
    mask ordinary = (mask)((bits)a + t->special_offset) < t->special_limit; /* 0 < a < inf */
    return choose(ordinary, power, a);
}

/* ---- one term ------------------------------------------------------------------------------------- */

typedef enum { HALF, ONE, THREE_HALVES, TWO, THREE, FOUR, BELOW_ONE, ABOVE_ONE } order;

static order order_of(double p) {
    return p == 0.5 ? HALF : p == 1 ? ONE : p == 1.5 ? THREE_HALVES : p == 2 ? TWO
        : p == 3 ? THREE : p == 4 ? FOUR : p < 1 ? BELOW_ONE : ABOVE_ONE;
}

/* a^p, where `t` was prepared for p. */
INLINE void power(vec a[GROUP], const order o, const power_table *t) {
    vec exponent[GROUP], fraction[GROUP];
    switch (o) {
    case HALF: EACH a[g] = root(a[g]); return;
    case ONE: return;
    case THREE_HALVES: EACH a[g] *= root(a[g]); return;
    case TWO: EACH a[g] *= a[g]; return;
    case THREE: EACH a[g] *= a[g] * a[g]; return;
    case FOUR: EACH a[g] = (a[g] * a[g]) * (a[g] * a[g]); return;
    default:
        log2_parts(a, t, exponent, fraction);
        exp2_of_product(exponent, fraction, t, fraction);
        EACH a[g] = keep_special(a[g], fraction[g], t);
    }
}

/* value = |difference|^p; slope = sign(difference) * |difference|^(p-1), the derivative without its
 * factor p, and 0 at difference 0; log2 = log2|difference| (general p only).
 * `t` was prepared for p if p < 1, and for p - 1 if p > 1: of the two powers value and slope, the one that
 * overflows or underflows last. For general p < 1 the slope of a subnormal distance is divided by the
 * smallest normal number instead, so that it is finite. */
INLINE void term(const vec difference[GROUP], const order o, const power_table *t, vec value[GROUP],
                 vec slope[GROUP], vec log2[GROUP]) {
    vec a[GROUP], exponent[GROUP], fraction[GROUP];
    EACH a[g] = magnitude(difference[g]);
    switch (o) {
    case HALF:
        EACH value[g] = root(a[g]);
        EACH slope[g] = 1 / value[g];
        break;
    case ONE:
        EACH value[g] = a[g];
        EACH slope[g] = splat(1);
        break;
    case THREE_HALVES:
        EACH slope[g] = root(a[g]);
        EACH value[g] = a[g] * slope[g];
        EACH slope[g] = with_sign(slope[g], difference[g]);
        return;
    case TWO:
        EACH value[g] = a[g] * a[g];
        EACH slope[g] = difference[g];
        return;
    case THREE:
        EACH value[g] = a[g] * a[g] * a[g];
        EACH slope[g] = a[g] * difference[g];
        return;
    case FOUR:
        EACH value[g] = (a[g] * a[g]) * (a[g] * a[g]);
        EACH slope[g] = a[g] * a[g] * difference[g];
        return;
    case BELOW_ONE:
        log2_parts(a, t, exponent, fraction);
        EACH log2[g] = exponent[g] + fraction[g];
        exp2_of_product(exponent, fraction, t, slope);
        EACH value[g] = keep_special(a[g], slope[g], t);
        EACH slope[g] /= choose(a[g] < t->min_normal, t->min_normal, a[g]);
        break;
    case ABOVE_ONE:
        log2_parts(a, t, exponent, fraction);
        EACH log2[g] = exponent[g] + fraction[g];
        exp2_of_product(exponent, fraction, t, slope);
        EACH slope[g] = keep_special(a[g], slope[g], t);
        EACH value[g] = a[g] * slope[g];
        break;
    }
    EACH slope[g] = (vec)((mask)with_sign(slope[g], difference[g]) & (difference[g] != 0));
}

/* ---- forward -------------------------------------------------------------------------------------- */

typedef struct {
    const real *x; /* (rows, d) */
    const vec *packed;
    real *out; /* (rows, stride), of which `columns` columns are written */
    int64_t rows, d, stride;
    int columns;
    const power_table *table;
} forward_job;

/* All rows against one panel of `panel` vectors of templates, packed as d times (panel of z, panel of u). */
INLINE void forward_panel(const forward_job *j, const order o, const int omit_nan, const int panel) {
    const int64_t rows = j->rows, d = j->d;
    for (int64_t row = 0; row < rows; row += ROWS) {
        const real *x[ROWS];
        vec sum[ROWS][PANEL] = {{{0}}};
        for (int r = 0; r < ROWS; r++) x[r] = j->x + (row + r < rows ? row + r : rows - 1) * d;
        const vec *z = j->packed;
        for (int64_t i = 0; i < d; i++, z += 2 * panel)
            _Pragma("GCC unroll 2") for (int r = 0; r < ROWS; r += GROUP / panel) {
                vec a[GROUP];
                EACH {
                    const vec x_i = splat(x[r + g / panel][i]);
                    vec difference = x_i - z[g % panel];
                    if (omit_nan) difference = (vec)((mask)difference & (x_i == x_i)); /* |0|^p adds nothing */
                    a[g] = magnitude(difference);
                }
                power(a, o, j->table);
                EACH sum[r + g / panel][g % panel] -= z[panel + g % panel] * a[g];
            }
        for (int r = 0; r < ROWS && row + r < rows; r++)
            for (int v = 0; v * LANES < j->columns; v++) {
                const int left = j->columns - v * LANES;
                store(j->out + (row + r) * j->stride + v * LANES, sum[r][v], left < LANES ? left : LANES);
            }
    }
}

/* One function for each order, so that each is compiled with its own innermost loop. */
#define FORWARD(ORDER)                                                        \
    static __attribute__((noinline)) void forward_##ORDER(const forward_job *j, int omit_nan) { \
        if (omit_nan) forward_panel(j, ORDER, 1, PANEL);                      \
        else if (j->columns > LANES) forward_panel(j, ORDER, 0, PANEL);       \
        else forward_panel(j, ORDER, 0, 1);                                   \
    }
FORWARD(HALF) FORWARD(ONE) FORWARD(THREE_HALVES) FORWARD(TWO) FORWARD(THREE) FORWARD(FOUR) FORWARD(ABOVE_ONE)

/* x (rows, d), z and u (n, d), u NULL for ones -> out (rows, n), of which the columns of templates
 * [first, last) are written. Returns 0, or 1 when there is no memory. */
int lp_forward(const real *x, const real *z, const real *u, int64_t rows, int64_t n, int64_t d, int64_t first,
               int64_t last, double p, int omit_nan, real *out) {
    static void (*const run[])(const forward_job *, int) = {
        forward_HALF, forward_ONE, forward_THREE_HALVES, forward_TWO,
        forward_THREE, forward_FOUR, forward_ABOVE_ONE, forward_ABOVE_ONE};
    power_table table;
    vec *packed;
    if (posix_memalign((void **)&packed, VECTOR, (size_t)(d + 1) * 2 * PANEL * VECTOR)) return 1;
    prepare_power(&table, p);
    for (int64_t l = first; l < last; l += PANEL * LANES) {
        const int columns = last - l < PANEL * LANES ? (int)(last - l) : PANEL * LANES;
        const int panel = columns > LANES || omit_nan ? PANEL : 1;
        for (int64_t i = 0; i < d; i++)
            for (int c = 0; c < panel * LANES; c++) {
                vec *slot = packed + i * 2 * panel + c / LANES;
                const int64_t at = (l + c) * d + i;
                slot[0][c % LANES] = c < columns ? z[at] : 0;
                slot[panel][c % LANES] = c < columns ? (u ? u[at] : 1) : 0;
            }
        run[order_of(p)](&(forward_job){x, packed, out + l, rows, d, n, columns, &table}, omit_nan);
    }
    free(packed);
    return 0;
}

/* ---- backward ------------------------------------------------------------------------------------- */

/* One template in LANES coordinates, with the sums over rows that its gradients are made of. */
typedef struct { vec z, u, by_z, by_u; } cell;

typedef struct {
    const real *x, *z, *u, *grad, *zeros;
    real *by_x, *by_z, *by_u;
    double *by_p;
    int64_t rows, n, d;
    double p;
    int omit_nan;
    const power_table *table;
} backward_job;

/* ROWS rows against n templates in LANES coordinates: adds to the cells and to *by_p; by_x receives
 * sum_l grad * u * slope. `known` is zero where a coordinate is left out, and so is all that it adds. */
INLINE void backward_rows(const backward_job *j, const vec x[ROWS], const mask known[ROWS],
                          const real *const grad[ROWS], cell *cells, vec by_x[ROWS], vec *by_p, const order o,
                          const int need_x, const int need_zu, const int need_p) {
    vec sum_x[ROWS] = {{0}}, sum_p = {0};
    const power_table *const table = j->table;
    for (cell *c = cells, *end = cells + j->n; c < end; c++) {
        const int64_t l = c - cells;
        const vec z = c->z, u = c->u;
        vec by_z = c->by_z, by_u = c->by_u;
        vec difference[GROUP], value[GROUP], slope[GROUP], log2[GROUP];
        EACH difference[g] = (vec)((mask)(x[g] - z) & known[g]);
        term(difference, o, table, value, slope, log2);
        EACH {
            const vec upstream = splat(grad[g][l]);
            slope[g] *= upstream;
            value[g] *= upstream;
            if (need_x) sum_x[g] += slope[g] * u;
            if (need_zu) by_z += slope[g], by_u += value[g];
            if (need_p) sum_p += value[g] * (u * log2[g]);
        }
        if (need_zu) c->by_z = by_z, c->by_u = by_u;
    }
    if (need_x)
        for (int r = 0; r < ROWS; r++) by_x[r] = sum_x[r];
    if (need_p) *by_p += sum_p;
}

/* Coordinates [i, i + LANES) of rows [row, row + BLOCK). */
INLINE void backward_block(const backward_job *j, cell *cells, int64_t i, int64_t row, const order o,
                           const int need_x, const int need_zu, const int need_p) {
    const int64_t n = j->n, d = j->d, end = j->rows - row < BLOCK ? j->rows : row + BLOCK;
    const int lanes = d - i < LANES ? (int)(d - i) : LANES;
    vec by_p = {0};
    for (; row < end; row += ROWS) {
        const int live = end - row < ROWS ? (int)(end - row) : ROWS;
        vec x[ROWS] = {{0}}, by_x[ROWS];
        mask known[ROWS] = {{0}};
        const real *grad[ROWS];
        for (int r = 0; r < ROWS; r++) grad[r] = r < live ? j->grad + (row + r) * n : j->zeros;
        for (int r = 0; r < live; r++) {
            x[r] = load(j->x + (row + r) * d + i, lanes);
            known[r] = j->omit_nan ? x[r] == x[r] : ~(mask){0};
        }
        backward_rows(j, x, known, grad, cells, by_x, &by_p, o, need_x, need_zu, need_p);
        if (need_x)
            for (int r = 0; r < live; r++) store(j->by_x + (row + r) * d + i, by_x[r] * (real)-j->p, lanes);
    }
    if (need_zu)
        for (int64_t l = 0; l < n; l++) {
            cell *c = cells + l;
            real *by_z = j->by_z + l * d + i, *by_u = j->by_u + l * d + i;
            store(by_z, load(by_z, lanes) + c->by_z * c->u * (real)j->p, lanes);
            store(by_u, load(by_u, lanes) - c->by_u, lanes);
            c->by_z = c->by_u = (vec){0};
        }
    if (need_p)
        for (int k = 0; k < lanes; k++) j->by_p[i + k] -= 0.69314718055994530942 * (double)by_p[k];
}

#define BACKWARD(ORDER)                                                                                     \
    static __attribute__((noinline)) void backward_##ORDER(const backward_job *j, cell *c, int64_t i, int64_t row) { \
        if (j->by_x && j->by_z) backward_block(j, c, i, row, ORDER, 1, 1, 0);                               \
        else if (j->by_x) backward_block(j, c, i, row, ORDER, 1, 0, 0);                                     \
        else backward_block(j, c, i, row, ORDER, 0, 1, 0);                                                  \
    }
/* With the gradient of p, everything else is wanted as well or costs little beside the logarithm. */
#define BACKWARD_WITH_P(ORDER)                                                                              \
    static __attribute__((noinline)) void backward_p_##ORDER(const backward_job *j, cell *c, int64_t i, int64_t row) { \
        if (j->by_x) backward_block(j, c, i, row, ORDER, 1, 1, 1);                                          \
        else backward_block(j, c, i, row, ORDER, 0, 1, 1);                                                  \
    }
BACKWARD(HALF) BACKWARD(ONE) BACKWARD(THREE_HALVES) BACKWARD(TWO) BACKWARD(THREE) BACKWARD(FOUR)
BACKWARD(BELOW_ONE) BACKWARD(ABOVE_ONE)
BACKWARD_WITH_P(BELOW_ONE) BACKWARD_WITH_P(ABOVE_ONE)

/* Gradients for rows [0, rows) in coordinates [first, last); `first` is a multiple of lp_lanes().
 * by_x (rows, d) is written; by_z and by_u (n, d; both or neither) and by_p (d; one sum for each
 * coordinate; only together with by_z) are added to. Each may be NULL when it is not wanted.
 * Returns 0, or 1 when there is no memory. */
int lp_backward(const real *x, const real *z, const real *u, const real *grad, int64_t rows, int64_t n, int64_t d,
                int64_t first, int64_t last, double p, int omit_nan, real *by_x, real *by_z, real *by_u,
                double *by_p) {
    static void (*const run[])(const backward_job *, cell *, int64_t, int64_t) = {
        backward_HALF, backward_ONE, backward_THREE_HALVES, backward_TWO,
        backward_THREE, backward_FOUR, backward_BELOW_ONE, backward_ABOVE_ONE};
    const int64_t vectors = (last - first + LANES - 1) / LANES;
    int64_t tile = TILE_BYTES / ((n + 1) * (int64_t)sizeof(cell)); /* vectors of coordinates at a time */
    tile = tile < 1 ? 1 : tile < vectors ? tile : vectors;
    real *zeros = calloc(n + 1, sizeof(real));
    cell *cells = NULL;
    if (!zeros || posix_memalign((void **)&cells, VECTOR, (size_t)(tile * n + 1) * sizeof(cell))) {
        free(zeros);
        return 1;
    }
    power_table table;
    prepare_power(&table, p < 1 ? p : p - 1);
    const backward_job job = {x, z, u, grad, zeros, by_x, by_z, by_u, by_p, rows, n, d, p, omit_nan, &table};
    for (int64_t start = first; start < last; start += tile * LANES) {
        const int64_t stop = last - start < tile * LANES ? last : start + tile * LANES;
        for (int64_t i = start; i < stop; i += LANES) {
            const int lanes = d - i < LANES ? (int)(d - i) : LANES;
            cell *slice = cells + (i - start) / LANES * n;
            for (int64_t l = 0; l < n; l++)
                slice[l] = (cell){load(z + l * d + i, lanes), u ? load(u + l * d + i, lanes) : splat(1), {0}, {0}};
        }
        for (int64_t row = 0; row < rows; row += BLOCK)
            for (int64_t i = start; i < stop; i += LANES)
                (by_p ? p < 1 ? backward_p_BELOW_ONE : backward_p_ABOVE_ONE : run[order_of(p)])(
                    &job, cells + (i - start) / LANES * n, i, row);
    }
    free(cells);
    free(zeros);
    return 0;
}

int64_t lp_lanes(void) { return LANES; }
