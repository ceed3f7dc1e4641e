/* The weighted lp similarity of section 2, out[b, l] = -sum_i u[l, i] * |x[b, i] - z[l, i]|^p,
 * and its gradients, without anything of size rows x n x d.
 *
 * Plain C99 with the vector types that gcc and clang share. Compiled twice, for float and (with
 * -DLP_DOUBLE) for double, by _compiler.py; called through ctypes by _lp_kernel.py, which splits the work
 * among threads. Nothing here may be compiled with -ffast-math: NaN, infinity and the rounding trick
 * of exp2 are relied upon. Every sum runs in an order that does not depend on the ranges asked for.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef LP_DOUBLE
typedef double real;
typedef int64_t integer;
typedef uint64_t word;
enum { MANTISSA = 52, BIAS = 1023, LOG_TERMS = 11, EXP_TERMS = 14 };
static const double MIN_NORMAL = 0x1p-1022, MAX_NORMAL = 0x1.fffffffffffffp1023;
static const word SQRT_HALF = UINT64_C(0x3fe6a09e667f3bcd);
/* log2((1 + s)/(1 - s))/s in powers of s^2, and 2^r in powers of r: the Taylor series. */
static const real LOG[] = {
    2.8853900817779268147, 0.96179669392597560491, 0.57707801635558536294, 0.4121985831111324021,
    0.32059889797532520164, 0.26230818925253880134, 0.22195308321368667806, 0.19235933878519512098,
    0.16972882833987804792, 0.15186263588304877972, 0.1373995277037108007};
static const real EXP[] = {
    1, 0.69314718055994530942, 0.24022650695910071233, 0.055504108664821579953, 0.009618129107628477162,
    0.0013333558146428443423, 0.00015403530393381609954, 0.00001525273380405984028,
    1.3215486790144309488e-6, 1.0178086009239699727e-7, 7.0549116208011233299e-9,
    4.4455382718708114976e-10, 2.5678435993488205142e-11, 1.3691488853904128881e-12};
#else
typedef float real;
typedef int32_t integer;
typedef uint32_t word;
enum { MANTISSA = 23, BIAS = 127, LOG_TERMS = 4, EXP_TERMS = 7 };
static const double MIN_NORMAL = 0x1p-126, MAX_NORMAL = 0x1.fffffep127;
static const word SQRT_HALF = UINT32_C(0x3f3504f3);
/* The same functions on |s| <= 0.1716 and |r| <= 1/2, with the least maximal relative error that so many
 * terms allow: 7e-10 and 2e-9. */
static const real LOG[] = {2.88539007978f, 0.961798853718f, 0.576713833631f, 0.431748341714f};
static const real EXP[] = {1, 0.693147202855f, 0.240226479136f, 0.0555033247126f,
                           0.00961843735844f, 0.00133988743782f, 0.000153533617866f};
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
    GROUP = 8,               /* vectors that are worked on in step */
    PANEL = 2,               /* of these in the forward pass: vectors of templates, the rest being rows */
    BLOCK = 128,             /* rows between two flushes of the gradients of z and u: a two-level sum */
    TILE_BYTES = 256 * 1024, /* working set of one backward tile */
};
typedef real vec __attribute__((vector_size(VECTOR)));
typedef word bits __attribute__((vector_size(VECTOR)));
typedef integer mask __attribute__((vector_size(VECTOR))); /* what comparing vectors gives: 0 or -1 */

#define INLINE static inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))

static const word SIGN = (word)1 << (8 * sizeof(real) - 1);

INLINE vec splat(real a) { return a - (vec){0}; }
INLINE bits splat_bits(word a) { return a - (bits){0}; }
INLINE vec magnitude(vec a) { return (vec)((bits)a & ~splat_bits(SIGN)); }
INLINE vec times_sign(vec a, vec b) { return (vec)((bits)a ^ ((bits)b & splat_bits(SIGN))); }
INLINE vec where(mask condition, vec a) { return (vec)(condition & (mask)a); } /* else 0 */
INLINE vec square(vec a) { return a * a; }

/* Written by lanes, which gcc and clang turn into the one instruction that is meant. */
INLINE vec root(vec a) {
    for (int k = 0; k < LANES; k++) a[k] = sizeof(real) == sizeof(float) ? sqrtf((float)a[k]) : sqrt(a[k]);
    return a;
}

/* Up to LANES numbers from memory, the rest being `pad`; and back. */
INLINE vec load(const real *from, int lanes, real pad) {
    vec a = splat(pad);
    if (lanes == LANES) memcpy(&a, from, sizeof a);
    else memcpy(&a, from, lanes * sizeof(real));
    return a;
}
INLINE void store(real *to, vec a, int lanes) {
    if (lanes == LANES) memcpy(to, &a, sizeof a);
    else memcpy(to, &a, lanes * sizeof(real));
}

/* ---- a^q for vectors of distances ------------------------------------------------------------------ */

/* The power and every constant that it needs, as vectors in memory: there are more of them than registers,
 * and an instruction reads its operand from here for nothing. */
typedef struct {
    double p;
    vec q, q_high, q_low; /* q = q_high + q_low; q_high has so few bits that q_high * exponent is exact */
    vec log[LOG_TERMS], exp[EXP_TERMS], one, round;
    bits to_sqrt_half, fraction, sqrt_half, first;
    mask range; /* first <= a < first + range, as integers: a and a^q are normal numbers */
#ifdef LP_DOUBLE
    bits to_number;
    vec unbias;
#endif
} power_table;

static word word_of(double a) {
    const real r = (real)a;
    word w;
    memcpy(&w, &r, sizeof w);
    return w;
}

static void prepare_power(power_table *t, double p, double q) {
    int exponent;
    const double scaled = frexp(q, &exponent), step = MANTISSA == 52 ? 0x1p40 : 0x1p14;
    const double high = ldexp(nearbyint(scaled * step) / step, exponent);
    const double least = exp2((2 - BIAS) / q), most = exp2((BIAS - 1) / q);
    const word first = word_of(least > MIN_NORMAL ? least : MIN_NORMAL);
    const word last = word_of(most < MAX_NORMAL ? most : MAX_NORMAL);
    t->p = p;
    t->q = splat((real)q);
    t->q_high = splat((real)high);
    t->q_low = splat((real)(q - high));
    for (int k = 0; k < LOG_TERMS; k++) t->log[k] = splat(LOG[k]);
    for (int k = 0; k < EXP_TERMS; k++) t->exp[k] = splat(EXP[k]);
    t->one = splat(1);
    t->round = splat((real)(1.5 * ((word)1 << MANTISSA)));
    t->fraction = splat_bits(((word)1 << MANTISSA) - 1);
    t->sqrt_half = splat_bits(SQRT_HALF);
    t->first = splat_bits(first + SIGN); /* the sign bit makes a comparison of signed integers do */
    t->range = (mask)splat_bits(last - first + SIGN);
#ifdef LP_DOUBLE
    t->to_sqrt_half = splat_bits(((word)BIAS << MANTISSA) - SQRT_HALF);
    t->to_number = splat_bits((word)(BIAS + MANTISSA) << MANTISSA);
    t->unbias = splat((real)((word)1 << MANTISSA) + BIAS);
#else
    t->to_sqrt_half = -splat_bits(SQRT_HALF);
#endif
}

/* The polynomials below are long chains of dependent instructions; working on GROUP vectors in step gives
 * the processor independent ones to fill the gaps with. */
#define EACH(count) _Pragma("GCC unroll 8") for (int g = 0; g < (count); g++)

/* log2(a) = exponent + fraction for normal a, |fraction| <= 1/2; nonsense for other a.
 * With m in [sqrt(1/2), sqrt(2)) and s = (m - 1)/(m + 1): log2(m) = 2/ln(2) * (s + s^3/3 + s^5/5 + ...). */
INLINE void log2_parts(const vec a[GROUP], const power_table *t, vec exponent[GROUP], vec fraction[GROUP]) {
    vec m[GROUP], s[GROUP];
    bits shifted[GROUP];
    EACH(GROUP) shifted[g] = (bits)a[g] + t->to_sqrt_half; /* so that the exponent steps at sqrt(1/2) */
#ifdef LP_DOUBLE
    /* Few processors convert 64-bit integers: be the last bits of 2^MANTISSA, and take that off again. */
    EACH(GROUP) exponent[g] = (vec)((shifted[g] >> MANTISSA) | t->to_number) - t->unbias;
#else
    EACH(GROUP) exponent[g] = __builtin_convertvector((mask)shifted[g] >> MANTISSA, vec);
#endif
    EACH(GROUP) m[g] = (vec)((shifted[g] & t->fraction) + t->sqrt_half);
    EACH(GROUP) s[g] = (m[g] - t->one) / (m[g] + t->one);
    EACH(GROUP) m[g] = s[g] * s[g];
    EACH(GROUP) fraction[g] = t->log[LOG_TERMS - 1];
    for (int k = LOG_TERMS - 2; k >= 0; k--) EACH(GROUP) fraction[g] = fraction[g] * m[g] + t->log[k];
    EACH(GROUP) fraction[g] *= s[g];
}

/* 2^(q * (exponent + fraction)) where that is a normal number. The large part of the product is exact, so
 * that the error stays a few units in the last place over the whole range. */
INLINE void exp2_of_product(const vec exponent[GROUP], const vec fraction[GROUP], const power_table *t,
                            vec result[GROUP]) {
    vec r[GROUP], rounded[GROUP];
    EACH(GROUP) r[g] = t->q_low * exponent[g] + t->q * fraction[g];
    /* To an integer, which is then in the last bits. */
    EACH(GROUP) rounded[g] = (t->q_high * exponent[g] + r[g]) + t->round;
    EACH(GROUP) r[g] += t->q_high * exponent[g] - (rounded[g] - t->round);
    EACH(GROUP) result[g] = t->exp[EXP_TERMS - 1];
    for (int k = EXP_TERMS - 2; k >= 0; k--) EACH(GROUP) result[g] = result[g] * r[g] + t->exp[k];
    EACH(GROUP) result[g] = (vec)((bits)result[g] + ((bits)rounded[g] << MANTISSA));
}

/* Whether the two functions above may be used for a; else a, or a^q, is 0, subnormal, inf or NaN. */
INLINE mask in_range(vec a, const power_table *t) { return (mask)((bits)a - t->first) < t->range; }

INLINE int all_in_range(const vec a[GROUP], const power_table *t) {
    mask ok = ~(mask){0};
    uint64_t part[VECTOR / 8], all = ~UINT64_C(0);
    EACH(GROUP) ok &= in_range(a[g], t);
    memcpy(part, &ok, sizeof part);
    for (int k = 0; k < VECTOR / 8; k++) all &= part[k];
    return __builtin_expect(!~all, 1);
}

/* The lanes that are out of range, one at a time: value = a^p, slope = a^(p-1), but 0 where a is 0.
 * Where p < 1 the slope at a subnormal distance is that at the smallest normal one: finite. */
static NOINLINE __attribute__((cold)) void mend(const vec a[GROUP], const power_table *t, vec value[GROUP],
                                                vec slope[GROUP], vec log2_a[GROUP]) {
    for (int g = 0; g < GROUP; g++) {
        const mask ok = in_range(a[g], t);
        for (int k = 0; k < LANES; k++) {
            const double b = a[g][k];
            if (ok[k]) continue;
            value[g][k] = b == 0 ? 0 : (real)pow(b, t->p);
            if (!slope) continue;
            slope[g][k] = b == 0 ? 0 : (real)pow(t->p < 1 && b < MIN_NORMAL ? MIN_NORMAL : b, t->p - 1);
            log2_a[g][k] = b == 0 ? 0 : (real)log2(b);
        }
    }
}

/* ---- one term ------------------------------------------------------------------------------------- */

typedef enum { HALF, ONE, THREE_HALVES, TWO, THREE, FOUR, BELOW_ONE, ABOVE_ONE } order;

static order order_of(double p) {
    return p == 0.5 ? HALF : p == 1 ? ONE : p == 1.5 ? THREE_HALVES : p == 2 ? TWO
        : p == 3 ? THREE : p == 4 ? FOUR : p < 1 ? BELOW_ONE : ABOVE_ONE;
}

/* value = |difference|^p, where `t` was prepared for q = p. */
INLINE void power(const vec difference[GROUP], const order o, const power_table *t, vec value[GROUP]) {
    vec a[GROUP], exponent[GROUP], fraction[GROUP];
    EACH(GROUP) a[g] = magnitude(difference[g]);
    switch (o) {
    case HALF: EACH(GROUP) value[g] = root(a[g]); return;
    case ONE: EACH(GROUP) value[g] = a[g]; return;
    case THREE_HALVES: EACH(GROUP) value[g] = a[g] * root(a[g]); return;
    case TWO: EACH(GROUP) value[g] = difference[g] * difference[g]; return;
    case THREE: EACH(GROUP) value[g] = difference[g] * difference[g] * a[g]; return;
    case FOUR: EACH(GROUP) value[g] = square(square(difference[g])); return;
    default:
        log2_parts(a, t, exponent, fraction);
        exp2_of_product(exponent, fraction, t, value);
        if (!all_in_range(a, t)) {
            vec b[GROUP], mended[GROUP]; /* copies, so that the others need not be in memory */
            EACH(GROUP) b[g] = a[g], mended[g] = value[g];
            mend(b, t, mended, NULL, NULL);
            EACH(GROUP) value[g] = mended[g];
        }
    }
}

/* value = grad * |difference|^p; slope = grad * sign(difference) * |difference|^(p-1), the derivative without
 * its factor p, and 0 at difference 0; log2_a = log2|difference| (general p only).
 * `t` was prepared for q = p if p < 1, and for q = p - 1 if p > 1: of the two powers, the one that overflows
 * or underflows last. */
INLINE void term(const vec difference[GROUP], const vec grad[GROUP], const int count, const order o,
                 const power_table *t, vec value[GROUP], vec slope[GROUP], vec log2_a[GROUP]) {
    vec a[GROUP], exponent[GROUP], fraction[GROUP];
    EACH(count) a[g] = magnitude(difference[g]);
    switch (o) {
    case HALF:
        EACH(count) value[g] = root(a[g]);
        EACH(count) slope[g] = where(difference[g] != 0, times_sign(1 / value[g], difference[g]));
        break;
    case ONE:
        EACH(count) value[g] = grad[g] * a[g];
        EACH(count) slope[g] = where(difference[g] != 0, times_sign(grad[g], difference[g]));
        return;
    case THREE_HALVES:
        EACH(count) slope[g] = root(a[g]);
        EACH(count) value[g] = a[g] * slope[g];
        EACH(count) slope[g] = times_sign(slope[g], difference[g]);
        break;
    case TWO:
        EACH(count) slope[g] = difference[g];
        EACH(count) value[g] = difference[g] * difference[g];
        break;
    case THREE:
        EACH(count) slope[g] = a[g] * difference[g];
        EACH(count) value[g] = difference[g] * difference[g] * a[g];
        break;
    case FOUR:
        EACH(count) slope[g] = square(difference[g]) * difference[g];
        EACH(count) value[g] = square(square(difference[g]));
        break;
    case BELOW_ONE:
    case ABOVE_ONE:
        log2_parts(a, t, exponent, fraction);
        EACH(GROUP) log2_a[g] = exponent[g] + fraction[g];
        exp2_of_product(exponent, fraction, t, value);
        if (o == BELOW_ONE)
            EACH(GROUP) slope[g] = value[g] / a[g];
        else
            EACH(GROUP) slope[g] = value[g], value[g] *= a[g];
        if (!all_in_range(a, t)) {
            vec b[GROUP], m[3][GROUP];
            EACH(GROUP) b[g] = a[g], m[0][g] = value[g], m[1][g] = slope[g], m[2][g] = log2_a[g];
            mend(b, t, m[0], m[1], m[2]);
            EACH(GROUP) value[g] = m[0][g], slope[g] = m[1][g], log2_a[g] = m[2][g];
        }
        EACH(GROUP) slope[g] = times_sign(slope[g], difference[g]);
    }
    EACH(count) value[g] *= grad[g];
    EACH(count) slope[g] *= grad[g];
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
    const int step = GROUP / panel;
    for (int64_t row = 0; row < rows; row += step) {
        const real *x[GROUP];
        vec sum[GROUP] = {{0}}, difference[GROUP], value[GROUP];
        for (int r = 0; r < step; r++) x[r] = j->x + (row + r < rows ? row + r : rows - 1) * d;
        const vec *z = j->packed;
        for (int64_t i = 0; i < d; i++, z += 2 * panel) {
            EACH(GROUP) {
                const vec x_i = splat(x[g / panel][i]);
                difference[g] = x_i - z[g % panel];
                if (omit_nan) difference[g] = where(x_i == x_i, difference[g]); /* |0|^p adds nothing */
            }
            power(difference, o, j->table, value);
            EACH(GROUP) sum[g] -= z[panel + g % panel] * value[g];
        }
        for (int r = 0; r < step && row + r < rows; r++)
            for (int v = 0; v * LANES < j->columns; v++) {
                const int left = j->columns - v * LANES, lanes = left < LANES ? left : LANES;
                store(j->out + (row + r) * j->stride + v * LANES, sum[r * panel + v], lanes);
            }
    }
}

/* One function for each order, so that each has its own innermost loop; for data with NaN, where speed
 * matters less, one for all. */
#define FORWARD(ORDER)                                                 \
    static NOINLINE void forward_##ORDER(const forward_job *j) {       \
        if (j->columns > LANES) forward_panel(j, ORDER, 0, PANEL);     \
        else forward_panel(j, ORDER, 0, 1);                            \
    }
FORWARD(HALF) FORWARD(ONE) FORWARD(THREE_HALVES) FORWARD(TWO) FORWARD(THREE) FORWARD(FOUR) FORWARD(ABOVE_ONE)
static NOINLINE void forward_omit_nan(const forward_job *j, order o) { forward_panel(j, o, 1, PANEL); }

/* x (rows, d), z and u (n, d), u NULL for ones -> out (rows, n), of which the columns of templates
 * [first, last) are written. Returns 0, or 1 when there is no memory. */
int lp_forward(const real *x, const real *z, const real *u, int64_t rows, int64_t n, int64_t d, int64_t first,
               int64_t last, double p, int omit_nan, real *out) {
    static void (*const run[])(const forward_job *) = {
        forward_HALF, forward_ONE, forward_THREE_HALVES, forward_TWO,
        forward_THREE, forward_FOUR, forward_ABOVE_ONE, forward_ABOVE_ONE};
    power_table table;
    vec *packed;
    if (posix_memalign((void **)&packed, VECTOR, (size_t)(d + 1) * 2 * PANEL * VECTOR)) return 1;
    prepare_power(&table, p, p);
    for (int64_t l = first; l < last; l += PANEL * LANES) {
        const int columns = last - l < PANEL * LANES ? (int)(last - l) : PANEL * LANES;
        const int panel = omit_nan || columns > LANES ? PANEL : 1;
        for (int64_t i = 0; i < d; i++)
            for (int c = 0; c < panel * LANES; c++) {
                vec *slot = packed + i * 2 * panel + c / LANES;
                const int64_t at = (l + (c < columns ? c : columns - 1)) * d + i; /* the last one pads */
                slot[0][c % LANES] = z[at];
                slot[panel][c % LANES] = u ? u[at] : 1;
            }
        const forward_job job = {x, packed, out + l, rows, d, n, columns, &table};
        if (omit_nan) forward_omit_nan(&job, order_of(p));
        else run[order_of(p)](&job);
    }
    free(packed);
    return 0;
}

/* ---- backward ------------------------------------------------------------------------------------- */

/* One template in LANES coordinates, with the sums over rows that its gradients are made of. */
typedef struct { vec z, u, by_z, by_u; } cell;

typedef struct {
    const real *x, *grad, *zeros;
    real *by_x, *by_z, *by_u;
    double *by_p;
    int64_t rows, n, d;
    double p;
    int omit_nan;
    const power_table *table;
} backward_job;

/* `rows` rows against n templates in LANES coordinates: adds to the cells and to *by_p; by_x receives
 * sum_l grad * u * slope. `known` is zero where a coordinate is left out, and so is all that it adds.
 * `plain` promises the usual case: all is known, and the gradients of x, z and u, not of p, are wanted. */
INLINE void backward_rows(const backward_job *j, const vec x[GROUP], const mask known[GROUP],
                          const real *const grad[GROUP], cell *cells, vec by_x[GROUP], vec *by_p,
                          const int rows, const order o, const int plain) {
    const int need_x = plain || j->by_x, need_zu = plain || j->by_z, need_p = !plain && j->by_p;
    const int general = o == BELOW_ONE || o == ABOVE_ONE, step = general ? GROUP : 1;
    const power_table *const table = j->table;
    vec sum_x[GROUP] = {{0}}, sum_p = {0};
    for (cell *c = cells, *end = cells + j->n; c < end; c++) {
        const int64_t l = c - cells;
        const vec z = c->z, u = c->u;
        vec by_z = c->by_z, by_u = c->by_u;
        _Pragma("GCC unroll 4") for (int r = 0; r < rows; r += step) {
            vec difference[GROUP], upstream[GROUP], value[GROUP], slope[GROUP], log2_a[GROUP];
            EACH(step) difference[g] = plain ? x[r + g] - z : where(known[r + g], x[r + g] - z);
            EACH(step) upstream[g] = splat(grad[r + g][l]);
            term(difference, upstream, step, o, table, value, slope, log2_a);
            if (need_x) EACH(step) sum_x[r + g] += slope[g] * u;
            if (need_zu) EACH(step) by_z += slope[g], by_u += value[g];
            if (need_p && general) EACH(step) sum_p += value[g] * (u * log2_a[g]);
        }
        if (need_zu) c->by_z = by_z, c->by_u = by_u;
    }
    EACH(rows) by_x[g] = sum_x[g];
    *by_p += sum_p;
}

/* Coordinates [i, i + LANES) of rows [row, row + BLOCK). */
INLINE void backward_block(const backward_job *j, cell *cells, int64_t i, int64_t row, const order o) {
    /* The simple orders go one by one, and need their registers for the sums. */
    const int general = o == BELOW_ONE || o == ABOVE_ONE, rows = general ? GROUP : GROUP / 2;
    const int usual = !general && j->by_x && j->by_z && !j->by_p && !j->omit_nan;
    const int64_t n = j->n, d = j->d, end = j->rows - row < BLOCK ? j->rows : row + BLOCK;
    const int lanes = d - i < LANES ? (int)(d - i) : LANES;
    vec by_p = {0};
    for (; row < end; row += rows) {
        const int live = end - row < rows ? (int)(end - row) : rows;
        vec x[GROUP] = {{0}}, by_x[GROUP] = {{0}};
        mask known[GROUP] = {{0}};
        const real *grad[GROUP];
        for (int r = 0; r < rows; r++) grad[r] = r < live ? j->grad + (row + r) * n : j->zeros;
        for (int r = 0; r < live; r++) {
            x[r] = load(j->x + (row + r) * d + i, lanes, 1); /* 1 from the padding of z: not a rare case */
            known[r] = j->omit_nan ? x[r] == x[r] : ~(mask){0};
        }
        if (usual && live == rows) backward_rows(j, x, known, grad, cells, by_x, &by_p, rows, o, 1);
        else backward_rows(j, x, known, grad, cells, by_x, &by_p, rows, o, 0);
        if (j->by_x)
            for (int r = 0; r < live; r++) store(j->by_x + (row + r) * d + i, by_x[r] * (real)-j->p, lanes);
    }
    if (j->by_z)
        for (int64_t l = 0; l < n; l++) {
            cell *c = cells + l;
            real *by_z = j->by_z + l * d + i, *by_u = j->by_u + l * d + i;
            store(by_z, load(by_z, lanes, 0) + c->by_z * c->u * (real)j->p, lanes);
            store(by_u, load(by_u, lanes, 0) - c->by_u, lanes);
            c->by_z = c->by_u = (vec){0};
        }
    if (j->by_p)
        for (int k = 0; k < lanes; k++) j->by_p[i + k] -= 0.69314718055994530942 * (double)by_p[k];
}

#define BACKWARD(ORDER)                                                                               \
    static NOINLINE void backward_##ORDER(const backward_job *j, cell *c, int64_t i, int64_t row) {   \
        backward_block(j, c, i, row, ORDER);                                                          \
    }
BACKWARD(HALF) BACKWARD(ONE) BACKWARD(THREE_HALVES) BACKWARD(TWO) BACKWARD(THREE) BACKWARD(FOUR)
BACKWARD(BELOW_ONE) BACKWARD(ABOVE_ONE)

/* Gradients for rows [0, rows) in coordinates [first, last); `first` is a multiple of lp_lanes().
 * by_x (rows, d) is written; by_z and by_u (n, d; both or neither) and by_p (d; one sum for each coordinate)
 * are added to. Each may be NULL when it is not wanted. Returns 0, or 1 when there is no memory. */
int lp_backward(const real *x, const real *z, const real *u, const real *grad, int64_t rows, int64_t n,
                int64_t d, int64_t first, int64_t last, double p, int omit_nan, real *by_x, real *by_z,
                real *by_u, double *by_p) {
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
    prepare_power(&table, p, p < 1 ? p : p - 1);
    /* Only the general orders have the logarithm that the gradient of p needs. */
    const order o = by_p ? (p < 1 ? BELOW_ONE : ABOVE_ONE) : order_of(p);
    const backward_job job = {x, grad, zeros, by_x, by_z, by_u, by_p, rows, n, d, p, omit_nan, &table};
    for (int64_t start = first; start < last; start += tile * LANES) {
        const int64_t stop = last - start < tile * LANES ? last : start + tile * LANES;
        for (int64_t i = start; i < stop; i += LANES) {
            const int lanes = d - i < LANES ? (int)(d - i) : LANES;
            cell *slice = cells + (i - start) / LANES * n;
            for (int64_t l = 0; l < n; l++) {
                const vec u_l = u ? load(u + l * d + i, lanes, 0) : splat(1);
                slice[l] = (cell){load(z + l * d + i, lanes, 0), u_l, {0}, {0}};
            }
        }
        for (int64_t row = 0; row < rows; row += BLOCK)
            for (int64_t i = start; i < stop; i += LANES)
                run[o](&job, cells + (i - start) / LANES * n, i, row);
    }
    free(cells);
    free(zeros);
    return 0;
}

int64_t lp_lanes(void) { return LANES; }
