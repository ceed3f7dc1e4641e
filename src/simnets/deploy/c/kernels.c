/* The parts that exported networks are made of. c_source.py copies those that a network needs, each from its
 * "part" line on, and puts values for the names between @ signs. All of it is ASCII. */

// part header
/* A @family@ network as C99, written by simnets @version@: @kind@.
 *
 * No library but libm, no heap. @weights@ bytes of constants, @memory@ bytes of working memory.
 *
 *     cc -std=c99 -O3 -c THIS_FILE.c            an object to link with -lm
 *     cc -std=c99 -O3 -DSIMNETS_MAIN THIS_FILE.c -lm       a program: raw images in, lines of scores out
 *
 * To call it from C or C++:
 *
 *     #define SIMNETS_DECLARATIONS_ONLY
 *     #include "THIS_FILE.c"
 */
#ifndef SIMNETS_H
#define SIMNETS_H

#include <stdint.h>

#define SIMNETS_CHANNELS @channels@
#define SIMNETS_HEIGHT @height@
#define SIMNETS_WIDTH @width@
#define SIMNETS_IMAGE_SIZE (SIMNETS_CHANNELS * SIMNETS_HEIGHT * SIMNETS_WIDTH)
#define SIMNETS_NUM_CLASSES @classes@

#ifdef __cplusplus
extern "C" {
#endif

/* The names of the classes, UTF-8, in the order of the scores. */
extern const char *const simnets_classes[SIMNETS_NUM_CLASSES];

/* image: SIMNETS_IMAGE_SIZE pixels 0 to 255, channel by channel (channels x height x width), rows from the top.
 * scores: SIMNETS_NUM_CLASSES values, which are written; the greatest belongs to the most likely class.
 *
 * The working memory is static, so one call must end before the next begins. With -DSIMNETS_STORAGE= it lies
 * on the stack, and with -DSIMNETS_STORAGE="static _Thread_local" every thread has its own. */
void simnets_classify(const uint8_t image[], float scores[]);

#ifdef __cplusplus
}
#endif

#endif /* SIMNETS_H */

// part implementation
#ifndef SIMNETS_DECLARATIONS_ONLY

#include <math.h>
#include <string.h>

#ifndef SIMNETS_STORAGE
#define SIMNETS_STORAGE static
#endif

const char *const simnets_classes[SIMNETS_NUM_CLASSES] = {
@names@
};

// part memory
/* Of each layer's input the rows that its window covers, as a ring, and the number of the next row. */
struct memory {
@rings@
};

// part accumulate
/* y[o] += sum over i of x[i] * w[i][o]; four inputs at a time, which loads and stores y a fourth as often. */
static void @name@(float *restrict y, const @type@ *restrict w, const float *restrict x, int count)
{
    int i, o;
    for (i = 0; i + 4 <= count; i += 4, w += 4 * @n@) {
        const float a = x[i], b = x[i + 1], c = x[i + 2], d = x[i + 3];
        for (o = 0; o < @n@; o++)
            y[o] += a * (float)w[o] + b * (float)w[@n@ + o] + c * (float)w[2 * @n@ + o] + d * (float)w[3 * @n@ + o];
    }
    for (; i < count; i++, w += @n@)
        for (o = 0; o < @n@; o++)
            y[o] += x[i] * (float)w[o];
}

// part depthwise
/* y[o] += sum over i of x[i][o] * w[i][o]. */
static void @name@(float *restrict y, const @type@ *restrict w, const float *restrict x, int count)
{
    int i, o;
    for (i = 0; i < count; i += @n@)
        for (o = 0; o < @n@; o++)
            y[o] += x[i + o] * (float)w[i + o];
}

// part lp
/* s[l] -= sum over i of u[i][l] * |x[i] - z[i][l]|^p, p = @p@. */
static void @name@(float *restrict s, const @type@ *restrict z, const @type@ *restrict u,
                   const float *restrict x, int count)
{
    int i, l;
    for (i = 0; i < count; i++, z += @n@, u += @n@)
        for (l = 0; l < @n@; l++) {
            const float d = fabsf(x[i] - (float)z[l]@times_step@);
            s[l] -= (float)u[l] * (@power@);
        }
}

// part multiply
static void multiply(float *restrict y, const float *restrict factors, int count)
{
    int i;
    for (i = 0; i < count; i++)
        y[i] *= factors[i];
}

// part contrast
/* Of a patch: scale and shift of each channel, then its mean taken away, and its deviation divided by. */
static void contrast(float *restrict x, const float *scale, const float *shift, int count, int channels, float added)
{
    float mean = 0.0f, variance = 0.0f, factor;
    int i;
    for (i = 0; i < count; i++) {
        x[i] = x[i] * scale[i % channels] + shift[i % channels];
        mean += x[i];
    }
    mean /= (float)count;
    for (i = 0; i < count; i++) {
        x[i] -= mean;
        variance += x[i] * x[i];
    }
    factor = 1.0f / sqrtf(variance / (float)count + added);
    for (i = 0; i < count; i++)
        x[i] *= factor;
}

// part square
static void square(float *y, int count)
{
    int i;
    for (i = 0; i < count; i++)
        y[i] *= y[i];
}

// part rectify
static void rectify(float *y, int count)
{
    int i;
    for (i = 0; i < count; i++)
        y[i] = y[i] > 0.0f ? y[i] : 0.0f;
}

// part maximum
static void maximum_add(float *value, float *total, int count, float c)
{
    (void)total;
    *value = count == 0 || c > *value ? c : *value;
}

static float maximum_value(float value, float total, int count)
{
    (void)total, (void)count;
    return value;
}

// part minimum
static void minimum_add(float *value, float *total, int count, float c)
{
    (void)total;
    *value = count == 0 || c < *value ? c : *value;
}

static float minimum_value(float value, float total, int count)
{
    (void)total, (void)count;
    return value;
}

// part mean
static void mean_add(float *value, float *total, int count, float c)
{
    (void)total;
    *value = count == 0 ? c : *value + c;
}

static float mean_value(float value, float total, int count)
{
    (void)total;
    return value / (float)count;
}

// part mex
/* One more value c of MEX with beta = @beta@, after `count` others: *extreme is the greatest of them (the least
 * for beta < 0), *total the sum of expm1(beta * (value - *extreme)). So nothing overflows, and a small beta loses
 * no digits. */
static void @name@_add(float *extreme, float *total, int count, float c)
{
    const float d = @beta@ * (c - *extreme);
    if (count == 0) {
        *extreme = c;
        *total = 0.0f;
    } else if (c == *extreme) {
        return; /* expm1(0) is 0, and equal infinities have no difference */
    } else if (d <= 0.0f) {
        *total += expm1f(d);
    } else {
        const float shrink = expm1f(-d);
        *total += (*total + (float)count) * shrink;
        *extreme = c;
    }
}

static float @name@_value(float extreme, float total, int count)
{
    return extreme + log1pf(total / (float)count) / @beta@;
}

// part image_row
/* A row of the image, with channels side by side. */
static void image_row(struct memory *m, const uint8_t *image, int row, float *to)
{
    int x, c;
    (void)m;
    for (x = 0; x < @width@; x++)
        for (c = 0; c < @channels@; c++)
            to[x * @channels@ + c] = (float)image[(c * SIMNETS_HEIGHT + row) * SIMNETS_WIDTH + x]@offset@;
}

// part fill
/* Afterwards the ring of @name@ holds what row `output` of its output looks at. */
static void @name@_fill(struct memory *m, const uint8_t *image, int output)
{
    const int first = output * @stride@, end = @end@;
    if (m->@name@_next < first)
        m->@name@_next = first;
    for (; m->@name@_next < end; m->@name@_next++) {
        const int row = m->@name@_next - @padding@;
        float *to = m->@name@[m->@name@_next % @kernel@];
        if (row < 0 || row >= @height@)
            memset(to, 0, sizeof m->@name@[0]);
        else
            @before@_row(m, image, row, to + @border@);
    }
}

// part row
static void @name@_row(struct memory *m, const uint8_t *image, int row, float *to)
{
    int column;
    @name@_fill(m, image, row);
    for (column = 0; column < @width@; column++)
        @name@(m, row, column, to + column * @channels@);
}

// part layer
/* @comment@ */
static void @name@(const struct memory *m, int row, int column, float *out)
{
    float x[@patch@]@vectors@;
    int i;
    for (i = 0; i < @rows@; i++)
        memcpy(x + i * @span@, m->@name@[(row * @row_stride@ + i) % @rows@] + column * @column_step@, @span@ * sizeof *x);
@steps@
}

// part pool
/* @comment@ */
static void @name@(const struct memory *m, int row, int column, float *out)
{
    const int top = row * @row_stride@, bottom = @bottom@;
    const int left = column * @column_stride@, right = @right@;
    float total[@channels@] = {0.0f};
    int i, j, c, count = 0;
    for (i = top; i < bottom; i++)
        for (j = left; j < right; j++, count++) {
            const float *x = m->@name@[i % @rows@] + j * @channels@;
            for (c = 0; c < @channels@; c++)
                @mex@_add(&out[c], &total[c], count, x[c]);
        }
    for (c = 0; c < @channels@; c++)
        out[c] = @mex@_value(out[c], total[c], count);
@after@}

// part product_head
/* Classification MEX of one position, added up over positions: the log of a product of exponentials, from which
 * the greatest t has been taken away. */
static void head(float *t, float *scores, float *total, int position)
{
    float largest = t[0]@times_beta@, sums[@k@] = {0.0f};
    int l, r;
    (void)total;
    for (l = 0; l < @n@; l++) {
        t[l] = t[l]@times_beta@;
        largest = t[l] > largest ? t[l] : largest;
    }
    for (l = 0; l < @n@; l++)
        t[l] = expf(t[l] - largest);
    @accumulate@(sums, head_exponentials, t, @n@);
    for (r = 0; r < @k@; r++)
        scores[r] = (position > 0 ? scores[r] : 0.0f) + largest + logf(sums[r]);
}

// part general_head
/* Classification MEX of one position, and global pooling of it with the positions before. */
static void head(float *t, float *scores, float *total, int position)
{
    int l, r;
    for (r = 0; r < @k@; r++) {
        float value = 0.0f, sum = 0.0f;
        for (l = 0; l < @n@; l++)
            @mex@_add(&value, &sum, l, t[l] + head_offsets[r * @n@ + l]);
        @pool@_add(&scores[r], &total[r], position, @scale@@mex@_value(value, sum, @n@));
    }
}

// part plain_head
static void head(float *t, float *scores, float *total, int position)
{
    (void)total, (void)position;
    memcpy(scores, t, @k@ * sizeof *scores);
}

// part classify
void simnets_classify(const uint8_t image[], float scores[])
{
    SIMNETS_STORAGE struct memory memory;
    float t[@n@], total[@k@] = {0.0f};
    int row, column, r;
    memset(&memory, 0, sizeof memory);
    for (row = 0; row < @rows@; row++) {
        @last@_fill(&memory, image, row);
        for (column = 0; column < @columns@; column++) {
            @last@(&memory, row, column, t);
            head(t, scores, total, row * @columns@ + column);
        }
    }
    for (r = 0; r < @k@; r++)
        scores[r] = @score@;
}

// part main
#endif /* SIMNETS_DECLARATIONS_ONLY */

#ifdef SIMNETS_MAIN
#include <stdio.h>

/* Raw images on the standard input, one after the other; a line of scores for each. */
int main(void)
{
    static uint8_t image[SIMNETS_IMAGE_SIZE];
    float scores[SIMNETS_NUM_CLASSES];
    size_t count;
    int r;
    while ((count = fread(image, 1, sizeof image, stdin)) == sizeof image) {
        simnets_classify(image, scores);
        for (r = 0; r < SIMNETS_NUM_CLASSES; r++)
            printf("%.9g%c", (double)scores[r], r + 1 < SIMNETS_NUM_CLASSES ? ' ' : '\n');
    }
    if (count != 0) {
        fprintf(stderr, "the last image has %lu bytes, expected %d\n", (unsigned long)count, SIMNETS_IMAGE_SIZE);
        return 1;
    }
    return 0;
}
#endif /* SIMNETS_MAIN */
