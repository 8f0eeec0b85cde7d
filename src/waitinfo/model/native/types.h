/* What the kernels compute with: weights, caches, the passes of an engine, and room for a pass.
 *
 * library.py has the same structs.
 */

#define BLOCK 64 /* outputs computed together */
#define TILE 64 /* inputs in a tile of AMX */
#define TILE_ROWS 32 /* of inputs: two tiles */
#define KEYS 16 /* of a vector; scores are filled up to a multiple */
#define QUERIES 8 /* that attention computes together */
#define HALVES_FROM 48 /* rows: the attention of one half is computed beside the products of the other */
#define NORMS 4 /* rows whose layer norm is computed together */
#define PIECE 8 /* numbers of a key that lie side by side */
#define FOUR 4 /* keys that lie side by side */
#define MOST_WIDTH 256 /* of a head */
#define JUDGED 32 /* hidden units that are computed together */
#define SMALLEST 1e-30f /* the least scale of a row, so that its inverse is a number */
#define LEAST_WEIGHT 1e-4f /* SMALLEST_WEIGHT of info.py */
#define ROUND_WEIGHTS 6144.0f /* 1.5 * 2^(23 - 11) */
#define PARTS 3 /* of a precise number, each of 8 bits */
#define STEP 254.0f /* from one part to the next */

/* Inputs of a product are bytes. x86 multiplies those without a sign by weights that have one, ARM
 * those with a sign. SIDE inputs of a weight matrix lie side by side for each output. */
#ifdef __aarch64__
typedef int8_t Byte;
#define SIGNED 128
#define SIDE 8
#else
typedef uint8_t Byte;
#define SIGNED 0
#define SIDE 4
#endif

typedef uint32_t __attribute__((may_alias, aligned(2))) pair; /* of neighbours of 16 bits */

/* Numbers that are computed together. Each is at the same place of every CPU's vectors, so sums over
 * them have the same order. */
typedef double __attribute__((vector_size(64))) Doubles;
typedef float __attribute__((vector_size(32), aligned(4), may_alias)) Floats;
#define EIGHT(x) (*(Floats *)(x))

/* A block of keys' numbers, for what does not depend on the order. */
typedef float __attribute__((vector_size(64), aligned(4), may_alias)) Sixteen;
typedef int32_t __attribute__((vector_size(64), aligned(4), may_alias)) Whole;
typedef int16_t __attribute__((vector_size(32), aligned(2), may_alias)) Shorts;
#define SIXTEEN(x) (*(Sixteen *)(x))
#define CHOOSE_WHOLE(which, a, b) (((which) & (a)) | (~(which) & (b)))
#define CHOOSE(which, a, b) ((Sixteen)CHOOSE_WHOLE(which, (Whole)(a), (Whole)(b)))

/* What makes floats of the sums of a block of outputs. It lies behind their weights, so that it is
 * read with them: elsewhere, every block would have to wait for it. */
typedef struct {
    int32_t shift[BLOCK]; /* the sum of an output's weights times what is added to inputs */
    float factor[BLOCK], bias[BLOCK];
} Scaling;

/* Weights by blocks of outputs, SIDE inputs, outputs: [outputs/64][4 groups/SIDE][64][SIDE], with a
 * Scaling behind every block. Groups are of four inputs. */
typedef struct {
    const int8_t *weights;
    int32_t inputs, outputs, groups;
    int32_t positive; /* inputs are never negative: 0 ... 255 instead of -127 ... 127 */
    /* If inputs are centered, else NULL: what is subtracted from them, and 1 / how often they come.
     * Some come again behind the others: `repeated`, where `before` is what fitted until then. */
    const float *center, *share;
    const int32_t *repeated, *before;
    int64_t repeats;
} Linear;

static inline int groups_of(int inputs) { return (inputs + SIDE - 1) / SIDE * (SIDE / 4); }

/* What is added to inputs, so that they are bytes. */
static inline int plus_of(const Linear *m) { return (m->positive ? 0 : 128) - SIGNED; }

/* The block of weights that output n is in. */
static inline const int8_t *block_of(const Linear *m, int n) {
    return m->weights + (size_t)(n / BLOCK) * ((size_t)m->groups * 4 * BLOCK + sizeof(Scaling));
}

/* Bytes of a row of inputs, filled up with zeros: the weights behind a block, which whole tiles
 * reach, then count for nothing. */
static inline int stride_of(const Linear *m) { return (4 * m->groups + TILE - 1) / TILE * TILE; }

/* Weights that are needed next, and how many bytes of them to ask for with each group of inputs. Also
 * `pieces`, of a line for each group: one for every LINES groups; or NULL. */
typedef struct {
    const int8_t *weights;
    int step;
    const char *const *pieces;
} Ahead;

#define LINE 64 /* bytes */
#define LINES 16 /* in a piece */
#define MOST_PIECES 64

static inline const Scaling *scaling_of(const Linear *m, const int8_t *block) {
    return (const Scaling *)(block + (size_t)m->groups * 4 * BLOCK);
}

typedef struct {
    const float *weight, *bias;
    double eps;
} Norm;

typedef struct {
    Linear project, out, queries, cross_out, inner, outer;
    Norm norm_attention, norm_cross, norm_feed_forward;
    float round_values;
} Layer;

typedef struct {
    int32_t width, heads, encoder_layers, decoder_layers, before;
    int32_t recurrent, swish; /* the decoder's units, and the activation; else attention and relu */
    const Layer *encoder, *decoder;
    Norm encoder_norm, decoder_norm;
    Linear memory;
    const float *round_memory;
} Model;

/* Embeddings [tokens][width] as integers with a scale each, and what gives the tokens' info:
 * a table, or a matrix for whole numbers, `hidden`, and the vector `out`; or nothing. */
typedef struct {
    const int8_t *weight;
    const float *scale, *table;
    const double *out;
    Linear hidden;
    int32_t width, begin; /* the token whose info is 1 */
    float factor; /* of all embeddings */
} Embedding;

/* Keys and values of all heads of all rows, as whole numbers.
 *
 * Keys by fours: [heads][capacity/4][width/8][4 keys][8], with a unit for each key.
 * Values by pairs: [heads][capacity/2][width][2], with one unit for all.
 *
 * Of recurrent units, `units` are their states after the last two positions, [rows][2][width]. */
typedef struct {
    int16_t *keys, *values;
    float *units;
    int64_t keys_capacity, values_capacity;
} Cache;

/* What the READs of an engine take and give, by row of a pass. */
typedef struct {
    const Model *model;
    const Embedding *embedding; /* NULL if x and info are given */
    const float *positions;
    const Cache *caches, *memories;
    const int32_t *token, *row, *at;
    float *x, *info; /* embedded tokens, which become the states; info is NULL if there is none */
    uint8_t *finite;
    float *source_info; /* by row of the caches and position */
    double *received; /* total info by row of the caches and number of tokens */
    int32_t source_width, received_width;
    int32_t aware; /* of info: self-attention */
} Reading;

/* What the WRITEs of an engine take and give, by row of a pass if nothing else is said; `next`, the
 * inputs, by row of the caches. */
typedef struct {
    const Model *model;
    const Linear *scores;
    const Embedding *embedding; /* of the best tokens, as the next inputs; NULL for none */
    const float *positions;
    const Cache *caches, *memories;
    const float *next_x, *next_info;
    const int64_t *read, *written; /* tokens, by row of the caches */
    const float *source_info; /* by row of the caches and position; NULL if attention ignores it */
    const int32_t *never, *row;
    int32_t *at, *visible; /* positions, and the source tokens that each sees */
    float *bias; /* of cross-attention */
    float *x, *info; /* inputs, which become the states */
    int32_t *token;
    float *value, *scored, *embedded_x, *embedded_info;
    double *two; /* probabilities of the two best tokens; NULL if nobody asks for them */
    int16_t *shares; /* weights of cross-attention, as in Shares; NULL if nobody asks for them */
    int32_t nevers, aware, source_width, shares_width;
} Writing;

/* The head of a veto: weights [width + numbers][room] of its hidden units, filled up with zeros to a multiple
 * of JUDGED; their bias [room]; what they count [room], and its bias behind them. */
typedef struct {
    const float *weights;
    const double *bias, *out;
    int32_t width, numbers, room;
} Judge;

/* Weights of cross-attention in multiples of 1/2048, 0 at tokens not seen: [rows][layers][heads][width]. */
typedef struct {
    int16_t *of;
    size_t width;
} Shares;

/* Keys and values that queries need soon, in their order: products of other rows ask for them by pieces.
 * `fetched` counts queries whose keys and values were asked for, `taken` those that had them. */
typedef struct {
    const char *at, *end; /* of the keys or values of a query */
    const Cache *cache;
    const int32_t *row, *length;
    int plus, rows, heads, width;
    int r, head, values, fetched, taken, most;
} Later;

typedef struct {
    Byte *bytes;
    int32_t *sums, *scores;
    float *largest, *wide, *mixed, *result, *normed, *weights;
    int16_t *shares; /* weights of attention as whole numbers */
    int keys; /* that a query of attention has room for */
    Later *later; /* what products ask for meanwhile, or NULL, */
    void *beside; /* and what is computed of it as it comes, a Half, or NULL */
} Scratch;

/* The next query's keys or values; 0 behind the last. */
static int later_goes_on(Later *l) {
    if (l->values == 2) {
        l->values = 0, l->fetched++;
        if (++l->head == l->heads) l->head = 0, l->r++;
    }
    if (l->r == l->rows || l->fetched >= l->taken + l->most) return 0;
    const Cache *c = l->cache;
    size_t head = (size_t)l->row[l->r] * l->heads + l->head, size = (size_t)(l->length[l->r] + l->plus);
    size_t wide = l->values ? l->width : (l->width + PIECE - 1) / PIECE * PIECE;
    const int16_t *from = l->values++ ? c->values + head * c->values_capacity * wide
                                      : c->keys + head * c->keys_capacity * wide;
    l->at = (const char *)from;
    l->end = l->at + size * wide * sizeof(int16_t);
    return 1;
}

/* Whether the next queries can be computed without waiting. */
static inline int later_is_there(const Later *l) {
    return l->fetched >= l->taken + 2 * QUERIES || (l->r == l->rows && l->taken < l->fetched);
}

/* The next pieces that are asked for while `groups` of inputs are computed. */
static inline int later_pieces(Later *l, int groups, const char **pieces) {
    int count = (groups + LINES - 1) / LINES;
    if (count > MOST_PIECES) return 0;
    for (int i = 0; i < count; i++, l->at += LINES * LINE) {
        if (l->at >= l->end && !later_goes_on(l)) {
            if (!i) return 0;
            for (; i < count; i++) pieces[i] = pieces[i - 1];
            break;
        }
        pieces[i] = l->at;
    }
    return 1;
}

/* Room for a call, kept by the thread for its next one: fresh memory is slow at first. */
static int scratch_open(Scratch *s, int half, int rows, int width, int widest, int keys) {
    static __thread void *both[2];
    static __thread size_t rooms[2];
    void *kept = both[half];
    s->later = 0, s->beside = 0;
    keys = (keys + KEYS - 1) / KEYS * KEYS;
    s->keys = keys;
    keys *= QUERIES;
    size_t floats = (size_t)rows * (1 + (size_t)widest + 3 * (size_t)width) + 2 * (size_t)keys;
    size_t tiles = ((size_t)rows + TILE_ROWS - 1) / TILE_ROWS, bytes = tiles * TILE_ROWS * (widest + 2 * TILE);
    size_t sums = TILE_ROWS * BLOCK + (size_t)keys;
    size_t needed = (floats + sums) * sizeof(float) + (size_t)keys * sizeof(int16_t) + bytes + 64;
    if (needed > rooms[half]) {
        free(kept);
        kept = both[half] = malloc(needed);
        rooms[half] = kept ? needed : 0;
        if (!kept) return 0;
    }
    char *at = (char *)(((uintptr_t)kept + 63) / 64 * 64);
    s->sums = (int32_t *)at, at += TILE_ROWS * BLOCK * sizeof(int32_t);
    s->bytes = (Byte *)at, at += bytes;
    s->scores = (int32_t *)at, at += (size_t)keys * sizeof(int32_t);
    s->weights = (float *)at, at += (size_t)keys * sizeof(float);
    s->shares = (int16_t *)at, at += (size_t)keys * sizeof(int16_t);
    s->wide = (float *)at, at += (size_t)rows * widest * sizeof(float);
    s->mixed = (float *)at, at += (size_t)rows * width * sizeof(float);
    s->result = (float *)at, at += (size_t)rows * width * sizeof(float);
    s->normed = (float *)at, at += (size_t)rows * width * sizeof(float);
    s->largest = (float *)at;
    return 1;
}

/* What one kind of CPU computes: its functions of kind.h. */
typedef struct {
    int (*runs)(void); /* whether this CPU is of the kind; NULL: every one is */
    void (*take_whole)(const Linear *, const float *, int, Byte *, float *);
    void (*apply)(const Linear *, int, float *, int, Scratch *);
    void (*linear)(const Linear *, const float *, int, float *, int, Scratch *);
    void (*encode)(const Model *, int, float *, const int32_t *, const int32_t *, const float *,
                   const Cache *, const Cache *, Scratch *);
    void (*encode_whole)(const Model *, int, float *, const int32_t *, const int32_t *, const int32_t *,
                         const Cache *, const Cache *, Scratch *);
    void (*remember)(const Model *, int, const float *, const int32_t *, const int32_t *,
                     const Cache *);
    void (*decode)(const Model *, int, float *, const int32_t *, const int32_t *, const int32_t *,
                   const float *, const float *, int, const Cache *, const Cache *, const Shares *,
                   Scratch *, int);
    void (*best)(const Linear *, const float *, int, const int32_t *, int, int32_t *, float *,
                 float *, double *, Scratch *);
    void (*embed)(const Embedding *, int, const int32_t *, const int32_t *, const float *, float *,
                  float *, Scratch *);
    void (*consistency)(const float *, float, int, float *);
    void (*judge)(const Judge *, int, const float *, const double *, double *);
} Kind;
