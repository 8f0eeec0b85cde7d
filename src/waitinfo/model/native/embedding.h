/* Embeddings of tokens, their info, and what it adds to the scores of cross-attention. */

/* Repeats `consistency` of model/info.py: log(2 - |info - theirs|), not below log(LEAST_WEIGHT). */
static void NAME(consistency)(const float *theirs, float info, int count, float *bias) {
    for (int j = 0; j < count; j++) {
        float weight = 2.0f - __builtin_fabsf(info - theirs[j]);
        weight = weight < LEAST_WEIGHT ? LEAST_WEIGHT : weight;
        bias[j] = weight != weight ? weight : (float)NAME(logarithm)(weight);
    }
}

/* tanh(x) as PARTS rows of whole numbers: 127 tanh(x) is the sum of p_i / STEP^i. */
static void NAME(split)(const float *x, int count, int stride, Byte *out) {
    for (int i = 0; i < count; i++) {
        float rest = (float)NAME(hyperbolic_tangent)(x[i]) * 127.0f;
        for (int p = 0; p < PARTS; p++) {
            float part = __builtin_rintf(rest);
            out[(size_t)p * stride + i] = (Byte)((int)part + 128 - SIGNED);
            rest = (rest - part) * STEP;
        }
    }
    for (int p = 0; p < PARTS; p++)
        for (int i = count; i < stride; i++) out[(size_t)p * stride + i] = 0;
}

/* Repeats `InfoQuantizer` of model/info.py: 2 sigmoid(out tanh(W tanh(x))). */
static void NAME(predict_info)(const Embedding *m, int rows, const float *x, float *info,
                               Scratch *s) {
    const Linear *hidden = &m->hidden;
    int stride = stride_of(hidden), outputs = hidden->outputs;
    for (int r = 0; r < rows; r++)
        NAME(split)(x + (size_t)r * m->width, m->width, stride,
                    s->bytes + (size_t)r * PARTS * stride);
    for (int r = 0; r < PARTS * rows; r++) s->largest[r] = 1;
    NAME(apply)(hidden, PARTS * rows, s->wide, 0, s);
    for (int r = 0; r < rows; r++) {
        const float *parts = s->wide + (size_t)r * PARTS * outputs;
        double total = 0;
        for (int n = 0; n < outputs; n += BLOCK) {
            int count = outputs - n < BLOCK ? outputs - n : BLOCK;
            double products[BLOCK], sum = 0;
            for (int j = 0; j < count; j++) {
                float value = parts[2 * outputs + n + j] / (STEP * STEP); /* smallest first */
                value = value + parts[outputs + n + j] / STEP;
                value = value + parts[n + j];
                products[j] = (float)NAME(hyperbolic_tangent)(value) * m->out[n + j];
            }
            for (int j = 0; j < count; j++) sum += products[j];
            total += sum;
        }
        double e = NAME(exponential)(-__builtin_fabs(total));
        info[r] = (float)(2 * (total < 0 ? e : 1) / (1 + e));
    }
}

static void NAME(embed)(const Embedding *m, int rows, const int32_t *tokens, const int32_t *at,
                        const float *positions, float *x, float *info, Scratch *s) {
    int width = m->width;
    for (int r = 0; r < rows; r++) {
        const int8_t *weight = m->weight + (size_t)tokens[r] * width;
        const float *position = positions + (size_t)at[r] * width;
        float scale = m->scale[tokens[r]], *to = x + (size_t)r * width;
        for (int i = 0; i < width; i++) {
            float v = (float)weight[i] * scale;
            v = v * m->factor;
            to[i] = v + position[i];
        }
    }
    if (!info) return;
    if (m->table)
        for (int r = 0; r < rows; r++) info[r] = m->table[tokens[r]];
    else
        NAME(predict_info)(m, rows, x, info, s);
    for (int r = 0; r < rows; r++)
        if (tokens[r] == m->begin) info[r] = 1;
}

