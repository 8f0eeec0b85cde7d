/* What the kernels compute from random numbers, as a checksum for each step: one line for every kind
 * of code that this CPU runs. tests/test_native_arm.py compares the lines of different CPUs.
 *
 * Random numbers are drawn in statements of their own, since compilers choose the order of others. */

#include <stdio.h>

#define WAITINFO_SOURCES 0u
#include "kernels.c"

enum { WIDTH = 96, HEADS = 3, INNER = 140, TOKENS = 150, LAYERS = 2, ROWS = 9, ROOM = 32, REPEATS = 4 };

static uint64_t state;

static uint32_t draw(uint32_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

static float *numbers(int count, float least, float most) {
    float *x = malloc(count * sizeof(float));
    for (int i = 0; i < count; i++) x[i] = least + (most - least) * (float)draw(1 << 20) / (1 << 20);
    return x;
}

static int8_t *bytes(int count) {
    int8_t *x = malloc(count);
    for (int i = 0; i < count; i++) x[i] = (int8_t)((int)draw(255) - 127);
    return x;
}

static Linear matrix(int outputs, int inputs, int positive, int centered) {
    static int32_t repeated[REPEATS] = {3, 4, 11, 90}, before[REPEATS] = {127, 127, 127, 127};
    int repeats = centered ? REPEATS : 0;
    float scale = 0.02f / __builtin_sqrtf(inputs);
    int64_t size = waitinfo_packed_size(outputs, inputs + repeats);
    Linear m = {.inputs = inputs, .outputs = outputs, .positive = positive, .repeats = repeats};
    int8_t *weights = bytes(outputs * inputs), *packed = aligned_alloc(64, (size + 63) / 64 * 64);
    float *factor = numbers(outputs, scale / 2, scale);
    float *bias = numbers(outputs, -1, 1);
    m.weights = packed;
    m.groups = waitinfo_pack(weights, outputs, inputs, repeated, repeats, positive, factor, bias, packed);
    if (!centered) return m;
    float *share = numbers(inputs, 1, 1);
    for (int i = 0; i < REPEATS; i++) share[repeated[i]] = 0.5f;
    m.center = numbers(inputs, -1, 1), m.share = share, m.repeated = repeated, m.before = before;
    return m;
}

static Norm norm(void) {
    float *weight = numbers(WIDTH, 0.5f, 2);
    float *bias = numbers(WIDTH, -1, 1);
    return (Norm){weight, bias, 1e-5};
}

static Layer layer(int centered, int parts, int swish) {
    Layer m;
    m.project = matrix(parts * WIDTH, WIDTH, 0, centered);
    m.out = matrix(WIDTH, WIDTH, 0, centered);
    m.queries = matrix(WIDTH, WIDTH, 0, centered);
    m.cross_out = matrix(WIDTH, WIDTH, 0, centered);
    m.inner = matrix(INNER, WIDTH, 0, centered);
    m.outer = matrix(WIDTH, INNER, !swish, 0);
    m.norm_attention = norm();
    m.norm_cross = norm();
    m.norm_feed_forward = norm();
    m.round_values = 12582912.0f / 64;
    return m;
}

static Cache *caches(void) {
    Cache *made = calloc(LAYERS, sizeof(Cache));
    size_t numbers = (size_t)ROWS * ROOM * WIDTH; /* units: also the states of recurrent units */
    for (int l = 0; l < LAYERS; l++)
        made[l] = (Cache){calloc(numbers, 2), calloc(numbers, 2),
                          calloc((size_t)ROWS * (HEADS * ROOM + 2 * WIDTH), sizeof(float)), ROOM, ROOM};
    return made;
}

static void print(const void *data, size_t size) {
    uint32_t sum = 2166136261u;
    for (size_t i = 0; i < size; i++) sum = (sum ^ ((const uint8_t *)data)[i]) * 16777619u;
    printf(" %08x", sum);
}

/* Sources of unequal length in two pieces, then targets, each of a model with or without norms
 * before its sublayers; or whole sources and several positions of targets, of one with recurrent
 * units and swish. */
static void compute(int kind, int before, int whole) {
    state = 7;
    Layer layers[2 * LAYERS];
    for (int l = 0; l < 2 * LAYERS; l++) layers[l] = layer(before && l % 2, whole && l >= LAYERS ? 2 : 3, whole);
    float round_memory[LAYERS] = {12582912.0f / 64, 12582912.0f / 32};
    Model m = {WIDTH, HEADS, LAYERS, LAYERS, before, whole, whole, layers, layers + LAYERS};
    m.encoder_norm = norm();
    m.decoder_norm = norm();
    m.memory = matrix(2 * WIDTH * LAYERS, WIDTH, 0, 0);
    m.round_memory = round_memory;
    Linear scores = matrix(TOKENS, WIDTH, 0, 0);
    double out[80];
    for (int i = 0; i < 80; i++) out[i] = (double)draw(1000) / 500 - 1;
    Embedding embedding = {.out = out, .width = WIDTH, .begin = 2, .factor = 9};
    embedding.weight = bytes(TOKENS * WIDTH);
    embedding.scale = numbers(TOKENS, 0, 0.01f);
    embedding.hidden = matrix(80, WIDTH, 0, 0);
    float *positions = numbers(ROOM * WIDTH, -1, 1);
    Cache *own = caches(), *memories = caches(), *written = caches();
    int32_t row[ROWS * ROOM], at[ROWS * ROOM], token[ROWS * ROOM], visible[ROWS];
    float x[ROWS * ROOM * WIDTH], info[ROWS * ROOM], source_info[ROWS * ROOM];
    for (int piece = 0; piece < 2 && !whole; piece++) {
        int count = 0;
        for (int r = 0; r < ROWS; r++)
            for (int i = piece ? 3 + r % 2 : 0; i < (piece ? 7 + 2 * r : 3 + r % 2); i++)
                row[count] = r, at[count] = i, token[count++] = draw(TOKENS);
        waitinfo_embed(kind, &embedding, count, token, at, 0, positions, x, info);
        print(x, count * WIDTH * sizeof(float));
        print(info, count * sizeof(float));
        for (int i = 0; i < count; i++) source_info[row[i] * ROOM + at[i]] = info[i];
        waitinfo_encode(kind, &m, count, x, row, at, info, own, memories, ROOM);
        print(x, count * WIDTH * sizeof(float));
    }
    if (whole) {
        int32_t seen[ROWS * ROOM];
        int16_t weights[ROWS * ROOM * LAYERS * HEADS];
        for (int pass = 0; pass < 2; pass++) { /* sources, then targets */
            int count = 0;
            for (int r = 0; r < ROWS; r++)
                for (int i = 0; i < (pass ? 1 + r % 4 : 2 + r); i++)
                    row[count] = r, at[count] = i, seen[count] = 2 + r, token[count++] = draw(TOKENS);
            waitinfo_embed(kind, &embedding, count, token, at, 0, positions, x, info);
            if (pass)
                waitinfo_decode_again(kind, &m, count, x, row, at, seen, written, memories, ROOM, weights, ROWS + 2);
            else
                waitinfo_encode_whole(kind, &m, count, x, row, at, seen, own, memories, ROOM);
            print(x, count * WIDTH * sizeof(float));
            if (pass) print(weights, count * LAYERS * HEADS * (ROWS + 2) * sizeof(int16_t));
        }
        return;
    }
    for (int step = 0; step < 5; step++) {
        static float bias[ROWS * ROOM], all[ROWS * TOKENS], value[ROWS];
        static double two[2 * ROWS];
        static int16_t weights[ROWS * LAYERS * HEADS * ROOM];
        const int32_t never[] = {0, 2};
        Shares shares = {weights, ROOM};
        for (int r = 0; r < ROWS; r++) {
            row[r] = r, at[r] = step, visible[r] = 1 + (r + step) % 7;
            if (!step) token[r] = 2;
        }
        waitinfo_embed(kind, &embedding, ROWS, token, at, 0, positions, x, info);
        for (int r = 0; r < ROWS; r++)
            kinds[kind]->consistency(source_info + r * ROOM, info[r], visible[r], bias + r * ROOM);
        decode_rows(kind, &m, ROWS, x, row, at, visible, info, bias, ROOM, written, memories, ROOM, &shares);
        waitinfo_best(kind, &scores, ROWS, x, never, 2, token, value, all, two);
        print(x, ROWS * WIDTH * sizeof(float));
        print(weights, sizeof(weights));
        print(all, sizeof(all));
        print(two, sizeof(two));
        print(token, ROWS * sizeof(int32_t));
    }
}

int main(void) {
    for (int kind = 0; kind < (int)(sizeof(kinds) / sizeof(*kinds)); kind++) {
        if (!waitinfo_runs(kind)) continue;
        printf("%d", kind);
        compute(kind, 0, 0);
        compute(kind, 1, 0);
        compute(kind, 1, 1);
        printf("\n");
    }
    return 0;
}
