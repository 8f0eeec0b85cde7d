/* Layers of the encoder and the decoder. */

/* x <- norm(x + y), or norm(x) without y, into out.
 *
 * The sums of a row have to wait for each other, so some rows come together. */
__attribute__((always_inline)) static inline void NAME(normalise_rows)(
    const Norm *m, const float *x, const float *y, const int rows, int width, float *out) {
    Doubles lanes[NORMS] = {{0}};
    double total[NORMS] = {0}, mean[NORMS], scale[NORMS];
    int i = 0;
    for (; i + 8 <= width; i += 8)
        for (int r = 0; r < rows; r++) {
            Floats v = EIGHT(x + r * width + i);
            if (y) v = EIGHT(y + r * width + i) + v;
            EIGHT(out + r * width + i) = v;
            lanes[r] += WIDE(v);
        }
    for (int r = 0; r < rows; r++) {
        const float *from = x + r * width, *more = y ? y + r * width : 0;
        float *to = out + r * width;
        for (int j = i; j < width; j++) total[r] += to[j] = y ? more[j] + from[j] : from[j];
        for (int j = 0; j < 8; j++) total[r] += lanes[r][j];
        mean[r] = total[r] / width, total[r] = 0, lanes[r] = (Doubles){0};
    }
    if (!m) return;
    for (i = 0; i + 8 <= width; i += 8)
        for (int r = 0; r < rows; r++) {
            Doubles v = WIDE(EIGHT(out + r * width + i)) - mean[r];
            lanes[r] += v * v;
        }
    for (int r = 0; r < rows; r++) {
        for (int j = i; j < width; j++) {
            double v = out[r * width + j] - mean[r];
            total[r] += v * v;
        }
        for (int j = 0; j < 8; j++) total[r] += lanes[r][j];
        scale[r] = 1 / __builtin_sqrt(total[r] / width + m->eps);
    }
    for (i = 0; i + 8 <= width; i += 8)
        for (int r = 0; r < rows; r++) {
            Doubles v = (WIDE(EIGHT(out + r * width + i)) - mean[r]) * scale[r];
            EIGHT(out + r * width + i) = NARROW(v) * EIGHT(m->weight + i) + EIGHT(m->bias + i);
        }
    for (int r = 0; r < rows; r++)
        for (int j = i; j < width; j++) {
            float v = (float)((out[r * width + j] - mean[r]) * scale[r]);
            v = v * m->weight[j];
            out[r * width + j] = v + m->bias[j];
        }
}

static void NAME(normalise)(const Norm *m, const float *x, const float *y, int rows, int width,
                            float *out) {
    for (; rows >= NORMS; rows -= NORMS, x += NORMS * width, out += NORMS * width) {
        NAME(normalise_rows)(m, x, y, NORMS, width, out);
        if (y) y += NORMS * width;
    }
    for (; rows; rows--, x += width, out += width) {
        NAME(normalise_rows)(m, x, y, 1, width, out);
        if (y) y += width;
    }
}

/* One sublayer and its residual connection; `mixed` is the sublayer's result before its output. */
static void NAME(output)(const Model *m, const Linear *out, const Norm *norm, float *x,
                         const float *mixed, int rows, Scratch *s) {
    NAME(linear)(out, mixed, rows, s->result, 0, s);
    NAME(normalise)(m->before ? 0 : norm, x, s->result, rows, m->width, x);
}

static const float *NAME(input)(const Model *m, const Norm *norm, const float *x, int rows,
                                Scratch *s) {
    if (!m->before) return x;
    NAME(normalise)(norm, x, 0, rows, m->width, s->normed);
    return s->normed;
}

static void NAME(feed_forward)(const Model *m, const Layer *layer, float *x, int rows, Scratch *s) {
    const float *in = NAME(input)(m, &layer->norm_feed_forward, x, rows, s);
    NAME(linear)(&layer->inner, in, rows, s->wide, !m->swish, s);
    if (m->swish)
        for (size_t i = 0; i < (size_t)rows * layer->inner.outputs; i++) s->wide[i] *= NAME(sigmoid)(s->wide[i]);
    NAME(output)(m, &layer->outer, &layer->norm_feed_forward, x, s->wide, rows, s);
}

static void NAME(encode)(const Model *m, int rows, float *x, const int32_t *row, const int32_t *at,
                         const float *info, const Cache *caches, const Cache *memories,
                         Scratch *s) {
    for (int l = 0; l < m->encoder_layers; l++) {
        const Layer *layer = m->encoder + l;
        const float *in = NAME(input)(m, &layer->norm_attention, x, rows, s);
        NAME(Attention) a = NAME(self_attention)(m, layer, in, rows, row, at, 0, info, caches + l, s);
        NAME(attend)(&a, s);
        NAME(output)(m, &layer->out, &layer->norm_attention, x, s->mixed, rows, s);
        NAME(feed_forward)(m, layer, x, rows, s);
    }
    if (m->before) NAME(normalise)(&m->encoder_norm, x, 0, rows, m->width, x);
    NAME(linear)(&m->memory, x, rows, s->wide, 0, s);
    NAME(remember)(m, rows, s->wide, row, at, memories);
}

/* Whole sources, each token with all of its row; `cache` has room for one layer. */
static void NAME(encode_whole)(const Model *m, int rows, float *x, const int32_t *row,
                               const int32_t *at, const int32_t *lengths, const Cache *cache,
                               const Cache *memories, Scratch *s) {
    for (int l = 0; l < m->encoder_layers; l++) {
        const Layer *layer = m->encoder + l;
        const float *in = NAME(input)(m, &layer->norm_attention, x, rows, s);
        NAME(Attention) a = NAME(self_attention)(m, layer, in, rows, row, at, lengths, 0, cache, s);
        NAME(attend)(&a, s);
        NAME(output)(m, &layer->out, &layer->norm_attention, x, s->mixed, rows, s);
        NAME(feed_forward)(m, layer, x, rows, s);
    }
    if (m->before) NAME(normalise)(&m->encoder_norm, x, 0, rows, m->width, x);
    NAME(linear)(&m->memory, x, rows, s->wide, 0, s);
    NAME(remember)(m, rows, s->wide, row, at, memories);
}

/* Some rows of a step of the decoder, and how far their attention in layer `l` has come. */
typedef struct {
    const Model *m;
    int rows, bias_stride, l, crosses;
    float *x;
    const int32_t *row, *at, *visible;
    const float *info, *bias;
    const Cache *caches, *memories;
    Shares shares;
    Scratch *s;
    NAME(Attention) a;
    NAME(Progress) progress;
    Later later;
} NAME(Half);

static void NAME(begin_half)(NAME(Half) *h) {
    const NAME(Attention) *a = &h->a;
    h->progress = NAME(begin_attention)(a);
    h->later = (Later){.cache = a->cache, .row = a->row, .length = a->length, .plus = a->plus, .rows = a->rows,
                       .heads = a->heads, .width = a->width, .most = 6 * QUERIES};
}

/* Layer l up to its self-attention. */
static void NAME(before_attention)(NAME(Half) *h, int l) {
    const Model *m = h->m;
    const Layer *layer = m->decoder + l;
    h->l = l, h->crosses = 0, h->progress.count = 0;
    const float *in = NAME(input)(m, &layer->norm_attention, h->x, h->rows, h->s);
    if (m->recurrent) {
        NAME(recurrent_unit)(m, layer, in, h->rows, h->row, h->at, h->caches + l, h->s->result, h->s);
        NAME(normalise)(m->before ? 0 : &layer->norm_attention, h->x, h->s->result, h->rows, m->width, h->x);
        return;
    }
    h->a = NAME(self_attention)(m, layer, in, h->rows, h->row, h->at, 0, h->info, h->caches + l, h->s);
    NAME(begin_half)(h);
}

/* From self-attention to cross-attention. */
static void NAME(between_attentions)(NAME(Half) *h) {
    const Model *m = h->m;
    const Layer *layer = m->decoder + h->l;
    Scratch *s = h->s;
    h->crosses = 1;
    h->a = (NAME(Attention)){
        .cache = h->memories + h->l, .queries = s->wide, .row = h->row, .length = h->visible, .rows = h->rows,
        .heads = m->heads, .width = m->width / m->heads, .stride = m->width, .bias = h->bias,
        .bias_stride = h->bias_stride, .value_unit = m->round_memory[h->l] / 12582912.0f / 2048.0f,
        .out = s->mixed, .shares = h->shares.of ? &h->shares : 0, .layers = m->decoder_layers, .number = h->l,
    };
    NAME(begin_half)(h);
    s->later = &h->later; /* the first keys are asked for meanwhile */
    if (!m->recurrent) NAME(output)(m, &layer->out, &layer->norm_attention, h->x, s->mixed, h->rows, s);
    const float *in = NAME(input)(m, &layer->norm_cross, h->x, h->rows, s);
    NAME(linear)(&layer->queries, in, h->rows, s->wide, 0, s);
    s->later = 0;
}

/* Compute the next queries of the attentions of a layer. */
static void NAME(go_on)(void *beside) {
    NAME(Half) *h = beside;
    if (!h->progress.count) {
        if (!h->crosses) NAME(between_attentions)(h);
        return;
    }
    h->later.taken += h->progress.count;
    NAME(attend_some)(&h->a, &h->progress, h->s);
    if (!h->progress.count && !h->crosses) NAME(between_attentions)(h);
}

/* The rest of a half's layer and the next one up to its attention, and beside it the attentions of the
 * other half, if there is one. l is -1 at first. */
static void NAME(between)(NAME(Half) *h, int l, NAME(Half) *other) {
    const Model *m = h->m;
    Scratch *s = h->s;
    if (other) s->later = &other->later, s->beside = other;
    if (l >= 0) {
        const Layer *layer = m->decoder + l;
        NAME(output)(m, &layer->cross_out, &layer->norm_cross, h->x, s->mixed, h->rows, s);
        NAME(feed_forward)(m, layer, h->x, h->rows, s);
    }
    if (l + 1 < m->decoder_layers) NAME(before_attention)(h, l + 1);
    s->later = 0, s->beside = 0;
    while (other && (!other->crosses || other->progress.count)) NAME(go_on)(other);
}

/* A step of the decoder; the rows from `first` on are a half of their own, if there are any. */
static void NAME(decode)(const Model *m, int rows, float *x, const int32_t *row, const int32_t *at,
                         const int32_t *visible, const float *info, const float *bias,
                         int bias_stride, const Cache *caches, const Cache *memories,
                         const Shares *shares, Scratch *s, int first) {
    NAME(Half) halves[2];
    for (int i = 0; i < 2; i++) {
        int begin = i ? first : 0;
        size_t weights = (size_t)begin * m->decoder_layers * m->heads;
        halves[i] = (NAME(Half)){
            .m = m, .rows = i ? rows - first : first, .x = x + (size_t)begin * m->width, .row = row + begin,
            .at = at + begin, .visible = visible + begin, .info = info ? info + begin : 0,
            .bias = bias ? bias + (size_t)begin * bias_stride : 0, .bias_stride = bias_stride,
            .caches = caches, .memories = memories, .s = s + i,
        };
        if (shares) halves[i].shares = (Shares){shares->of + weights * shares->width, shares->width};
    }
    NAME(Half) *h = halves, *other = rows > first ? halves + 1 : 0;
    NAME(between)(h, -1, 0);
    for (int l = 0; l < m->decoder_layers; l++) {
        if (other)
            NAME(between)(other, l - 1, h);
        else
            while (!h->crosses || h->progress.count) NAME(go_on)(h);
        NAME(between)(h, l, other);
    }
    if (other) NAME(between)(other, m->decoder_layers - 1, 0);
    if (m->before) NAME(normalise)(&m->decoder_norm, x, 0, rows, m->width, x);
}
