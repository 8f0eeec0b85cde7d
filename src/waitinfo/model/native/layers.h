/* Layers of the encoder and the decoder. */

/* x <- norm(x + y), or norm(x) without y, into out. */
static void NAME(normalise)(const Norm *m, const float *x, const float *y, int rows, int width,
                            float *out) {
    for (int r = 0; r < rows; r++, x += width, out += width) {
        Doubles lanes = {0};
        double total = 0;
        int i = 0;
        for (; i + 8 <= width; i += 8) {
            Floats v = EIGHT(x + i);
            if (y) v = EIGHT(y + i) + v;
            EIGHT(out + i) = v;
            lanes += __builtin_convertvector(v, Doubles);
        }
        for (; i < width; i++) total += out[i] = y ? y[i] + x[i] : x[i];
        if (y) y += width;
        if (!m) continue;
        for (int j = 0; j < 8; j++) total += lanes[j];
        double mean = total / width;
        lanes = (Doubles){0};
        total = 0;
        for (i = 0; i + 8 <= width; i += 8) {
            Doubles v = __builtin_convertvector(EIGHT(out + i), Doubles) - mean;
            lanes += v * v;
        }
        for (; i < width; i++) total += (out[i] - mean) * (out[i] - mean);
        for (int j = 0; j < 8; j++) total += lanes[j];
        double scale = 1 / __builtin_sqrt(total / width + m->eps);
        for (i = 0; i + 8 <= width; i += 8) {
            Doubles v = (__builtin_convertvector(EIGHT(out + i), Doubles) - mean) * scale;
            EIGHT(out + i) = __builtin_convertvector(v, Floats) * EIGHT(m->weight + i) + EIGHT(m->bias + i);
        }
        for (; i < width; i++) {
            float v = (float)((out[i] - mean) * scale);
            v = v * m->weight[i];
            out[i] = v + m->bias[i];
        }
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

