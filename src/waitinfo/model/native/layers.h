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
        const float *from = x + r * width, *more = y + r * width;
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
        NAME(self_attention)(m, layer, in, rows, row, at, 0, info, caches + l, s->mixed, s);
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
        NAME(self_attention)(m, layer, in, rows, row, at, lengths, 0, cache, s->mixed, s);
        NAME(output)(m, &layer->out, &layer->norm_attention, x, s->mixed, rows, s);
        NAME(feed_forward)(m, layer, x, rows, s);
    }
    if (m->before) NAME(normalise)(&m->encoder_norm, x, 0, rows, m->width, x);
    NAME(linear)(&m->memory, x, rows, s->wide, 0, s);
    NAME(remember)(m, rows, s->wide, row, at, memories);
}

static void NAME(decode)(const Model *m, int rows, float *x, const int32_t *row, const int32_t *at,
                         const int32_t *visible, const float *info, const float *bias,
                         int bias_stride, const Cache *caches, const Cache *memories,
                         const Shares *shares, Scratch *s) {
    for (int l = 0; l < m->decoder_layers; l++) {
        const Layer *layer = m->decoder + l;
        const float *in = NAME(input)(m, &layer->norm_attention, x, rows, s);
        if (m->recurrent) {
            NAME(recurrent_unit)(m, layer, in, rows, row, at, caches + l, s->result, s);
            NAME(normalise)(m->before ? 0 : &layer->norm_attention, x, s->result, rows, m->width, x);
        } else {
            NAME(self_attention)(m, layer, in, rows, row, at, 0, info, caches + l, s->mixed, s);
            NAME(output)(m, &layer->out, &layer->norm_attention, x, s->mixed, rows, s);
        }
        in = NAME(input)(m, &layer->norm_cross, x, rows, s);
        NAME(cross_attention)(m, layer, in, rows, row, visible, bias, bias_stride, memories + l,
                              m->round_memory[l], s->mixed, shares, l, s);
        NAME(output)(m, &layer->cross_out, &layer->norm_cross, x, s->mixed, rows, s);
        NAME(feed_forward)(m, layer, x, rows, s);
    }
    if (m->before) NAME(normalise)(&m->decoder_norm, x, 0, rows, m->width, x);
}

