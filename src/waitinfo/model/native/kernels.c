/* The layers of an integer model in C: what model/integers computes, with the same bits.
 *
 * Products of integers are exact in any order, and attention rounds its operands so that sums of
 * floats are exact too (see integers/exact.py). What is left, sums of layer norm and softmax, is in double
 * precision. So this code must not be compiled with options that reorder or fuse other operations:
 * -ffp-contract=off, no -ffast-math.
 *
 * Called through ctypes: library.py finds the compiled code.
 */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi" /* vectors are handed to functions that are inlined */
#endif

#include "types.h"

/* A kind of CPU's code begins with USE("its instructions") and ends with USED. */
#define PRAGMA(x) _Pragma(#x)
#ifdef __clang__
#define USE(x) PRAGMA(clang attribute push(__attribute__((target(x))), apply_to = function))
#define USED PRAGMA(clang attribute pop)
#else
#define USE(x) PRAGMA(GCC push_options) PRAGMA(GCC target(x))
#define USED PRAGMA(GCC pop_options)
#endif

#include "plain.h"
#include "x86.h"
#include "arm.h"

/* The checksum of the sources, by setup.py, so that a build of other sources is noticed. */
uint32_t waitinfo_sources(void) { return WAITINFO_SOURCES; }

/* The size of the structs, which library.py repeats. */
int waitinfo_layout(void) {
    return sizeof(Model) + sizeof(Layer) + sizeof(Embedding) + sizeof(Reading) + sizeof(Writing) +
           sizeof(Judge);
}

/* In the order of KINDS of library.py; NULL: not in this build. Later ones are faster. */
static const Kind *const kinds[] = {&kind_plain, AVX2, AVXVNNI, AVX512, AMX, SDOT, I8MM};

/* Whether this build and this CPU have a kind of code. */
int waitinfo_runs(int kind) {
    if (kind < 0 || kind >= (int)(sizeof(kinds) / sizeof(*kinds)) || !kinds[kind]) return 0;
    return !kinds[kind]->runs || kinds[kind]->runs();
}

/* Bytes of a Linear's weights, and of what whole tiles reach behind the last of them. */
int64_t waitinfo_packed_size(int32_t outputs, int32_t inputs) {
    int64_t blocks = (outputs + BLOCK - 1) / BLOCK, groups = groups_of(inputs);
    int64_t tiles = (inputs + TILE - 1) / TILE, behind = (tiles * TILE - groups * 4) * BLOCK;
    return blocks * (groups * 4 * BLOCK + (int64_t)sizeof(Scaling)) + behind;
}

/* Bring weights [outputs][inputs] into the order of a Linear, filled up with zeros. The weights of
 * repeated inputs come again behind the others. Returns the groups of a Linear. */
int32_t waitinfo_pack(const int8_t *weights, int32_t outputs, int32_t inputs, const int32_t *repeated,
                   int32_t repeats, int32_t positive, const float *factor, const float *bias,
                   int8_t *packed) {
    int groups = groups_of(inputs + repeats);
    Linear m = {.weights = packed, .groups = groups, .positive = positive};
    memset(packed, 0, waitinfo_packed_size(outputs, inputs + repeats));
    for (int n = 0; n < outputs; n++) {
        int32_t sum = 0;
        int8_t *block = (int8_t *)block_of(&m, n);
        Scaling *scaling = (Scaling *)scaling_of(&m, block);
        for (int i = 0; i < inputs + repeats; i++) {
            int8_t w = weights[(size_t)n * inputs + (i < inputs ? i : repeated[i - inputs])];
            sum += w;
            block[((size_t)(i / SIDE) * BLOCK + n % BLOCK) * SIDE + i % SIDE] = w;
        }
        scaling->shift[n % BLOCK] = plus_of(&m) * sum;
        scaling->factor[n % BLOCK] = factor[n];
        scaling->bias[n % BLOCK] = bias ? bias[n] : 0;
    }
    return groups;
}

/* x W^T + b of rows x; `whole`: of whole numbers in -127 ... 127, which are not scaled. */
int waitinfo_linear(int kind, const Linear *m, int rows, const float *x, float *y, int whole) {
    Scratch s;
    if (!scratch_open(&s, 0, rows, 1, 4 * m->groups, 1)) return 0;
    if (whole) {
        kinds[kind]->take_whole(m, x, rows, s.bytes, s.largest);
        kinds[kind]->apply(m, rows, y, 0, &s);
    } else
        kinds[kind]->linear(m, x, rows, y, 0, &s);
    return 1;
}

static int widest(const Model *m) {
    int most = 3 * m->width;
    int memory = 2 * m->width * m->decoder_layers;
    if (memory > most) most = memory;
    for (int l = 0; l < m->encoder_layers; l++)
        if (m->encoder[l].inner.outputs > most) most = m->encoder[l].inner.outputs;
    for (int l = 0; l < m->decoder_layers; l++)
        if (m->decoder[l].inner.outputs > most) most = m->decoder[l].inner.outputs;
    return most;
}

/* Encode new source tokens x [rows][width], which is overwritten: token i at at[i] of row[i]. */
int waitinfo_encode(int kind, const Model *m, int rows, float *x, const int32_t *row,
                    const int32_t *at, const float *info, const Cache *caches,
                    const Cache *memories, int keys) {
    Scratch s;
    if (!scratch_open(&s, 0, rows, m->width, widest(m), keys)) return 0;
    kinds[kind]->encode(m, rows, x, row, at, info, caches, memories, &s);
    return 1;
}

/* The same for whole sources: token i is at at[i] of row[i], which has lengths[i] tokens. */
int waitinfo_encode_whole(int kind, const Model *m, int rows, float *x, const int32_t *row,
                          const int32_t *at, const int32_t *lengths, const Cache *cache,
                          const Cache *memories, int keys) {
    Scratch s;
    if (!scratch_open(&s, 0, rows, m->width, widest(m), keys)) return 0;
    kinds[kind]->encode_whole(m, rows, x, row, at, lengths, cache, memories, &s);
    return 1;
}

/* Store what another encoder has made: keys and values x [rows][layers][2][width]. */
int waitinfo_remember(int kind, const Model *m, int rows, const float *x, const int32_t *row,
                      const int32_t *at, const Cache *memories) {
    kinds[kind]->remember(m, rows, x, row, at, memories);
    return 1;
}

static int decode_rows(int kind, const Model *m, int rows, float *x, const int32_t *row,
                       const int32_t *at, const int32_t *visible, const float *info,
                       const float *bias, int bias_stride, const Cache *caches,
                       const Cache *memories, int keys, const Shares *shares) {
    Scratch s[2];
    int first = rows < HALVES_FROM ? rows : (rows / 2 + 5) / 6 * 6; /* a multiple of what has products together on many CPUs */
    if (!scratch_open(&s[0], 0, first, m->width, widest(m), keys)) return 0;
    if (first < rows && !scratch_open(&s[1], 1, rows - first, m->width, widest(m), keys)) return 0;
    kinds[kind]->decode(m, rows, x, row, at, visible, info, bias, bias_stride, caches, memories,
         shares, s, first);
    return 1;
}

/* One step of the decoder for some rows; x [rows][width] becomes the states. */
int waitinfo_decode(int kind, const Model *m, int rows, float *x, const int32_t *row,
                    const int32_t *at, const int32_t *visible, const float *info, const float *bias,
                    int bias_stride, const Cache *caches, const Cache *memories, int keys) {
    return decode_rows(kind, m, rows, x, row, at, visible, info, bias, bias_stride, caches,
                       memories, keys, 0);
}

/* Tokens x [rows][width] of whole targets, those of a row in order; weights of cross-attention in
 * `shares` [rows][layers][heads][width] if that is not NULL. */
int waitinfo_decode_again(int kind, const Model *m, int rows, float *x, const int32_t *row,
                          const int32_t *at, const int32_t *visible, const Cache *caches,
                          const Cache *memories, int keys, int16_t *shares, int64_t shares_width) {
    Shares of = {shares, shares_width};
    return decode_rows(kind, m, rows, x, row, at, visible, 0, 0, 0, caches, memories, keys,
                       shares ? &of : 0);
}

int waitinfo_best(int kind, const Linear *m, int rows, const float *x, const int32_t *never,
                  int nevers, int32_t *best, float *value, float *all, double *two) {
    Scratch s;
    if (!scratch_open(&s, 0, rows, 1, 4 * m->groups, 1)) return 0;
    kinds[kind]->best(m, x, rows, never, nevers, best, value, all, two, &s);
    return 1;
}

int waitinfo_judge(int kind, const Judge *m, int rows, const float *states, const double *numbers,
                   double *risk) {
    kinds[kind]->judge(m, rows, states, numbers, risk);
    return 1;
}

/* Embed tokens at `later` positions behind `at`, with the embeddings of positions [..][width]. */
int waitinfo_embed(int kind, const Embedding *m, int rows, const int32_t *tokens, const int32_t *at,
                   int later, const float *positions, float *x, float *info) {
    Scratch s;
    int wide = m->hidden.outputs > m->width ? m->hidden.outputs : m->width;
    if (!scratch_open(&s, 0, PARTS * rows, 1, wide, 1)) return 0;
    positions += (size_t)later * m->width;
    kinds[kind]->embed(m, rows, tokens, at, positions, x, info, &s);
    return 1;
}

/* Embed and encode `count` source tokens, from the first one on; keep their info. */
int waitinfo_read(int kind, const Reading *r, int first, int count, int keys) {
    const Model *m = r->model;
    const int32_t *at = r->at + first;
    float *x = r->x + (size_t)first * m->width, *info = r->info ? r->info + first : 0;
    if (r->embedding && !waitinfo_embed(kind, r->embedding, count, r->token + first, at, 0,
                                        r->positions, x, info))
        return 0;
    if (!waitinfo_encode(kind, m, count, x, r->row + first, at, r->aware ? info : 0, r->caches,
                         r->memories, keys))
        return 0;
    for (int i = 0; i < count; i++) {
        const float *state = x + (size_t)i * m->width;
        uint32_t most = 0;
        for (int j = 0; j < m->width; j++) {
            uint32_t bits;
            memcpy(&bits, state + j, 4);
            bits &= 0x7fffffff;
            most = bits > most ? bits : most;
        }
        r->finite[first + i] = most < 0x7f800000;
        if (info) {
            size_t row = r->row[first + i];
            double *total = r->received + row * r->received_width + at[i];
            r->source_info[row * r->source_width + at[i]] = info[i];
            total[1] = total[0] + info[i];
        }
    }
    return 1;
}

/* One step of `count` rows, from the first one on: their best tokens, embedded as next inputs.
 * `narrow`: what they see is given; else it is all that they have read. */
int waitinfo_write(int kind, const Writing *w, int first, int count, int narrow) {
    const Model *m = w->model;
    size_t width = m->width, source_width = w->source_width;
    const int32_t *row = w->row + first;
    int32_t *at = w->at + first, *visible = w->visible + first, keys = 0;
    float *x = w->x + first * width, *info = w->info ? w->info + first : 0;
    float *bias = w->source_info ? w->bias + first * source_width : 0;
    for (int i = 0; i < count; i++) {
        at[i] = w->written[row[i]];
        if (!narrow) visible[i] = w->read[row[i]];
        keys = at[i] >= keys ? at[i] + 1 : keys;
        keys = visible[i] > keys ? visible[i] : keys;
        memcpy(x + i * width, w->next_x + row[i] * width, width * sizeof(float));
        if (info) info[i] = w->next_info[row[i]];
        if (bias)
            kinds[kind]->consistency(w->source_info + row[i] * source_width, info[i], visible[i],
                 bias + i * source_width);
    }
    size_t weights = (size_t)m->decoder_layers * m->heads * w->shares_width; /* of a row */
    Shares shares = {w->shares ? w->shares + first * weights : 0, w->shares_width};
    if (!decode_rows(kind, m, count, x, row, at, visible, w->aware ? info : 0, bias, source_width,
                     w->caches, w->memories, keys, w->shares ? &shares : 0))
        return 0;
    int32_t *token = w->token + first;
    float *scored = w->scored ? w->scored + (size_t)first * w->scores->outputs : 0;
    if (!waitinfo_best(kind, w->scores, count, x, w->never, w->nevers, token, w->value + first,
                       scored, w->two ? w->two + 2 * first : 0))
        return 0;
    return !w->embedding ||
           waitinfo_embed(kind, w->embedding, count, token, at, 1, w->positions,
                          w->embedded_x + first * width, info ? w->embedded_info + first : 0);
}
