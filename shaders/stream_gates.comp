#version 460
// The gates of hyper-connections between residual streams: one invocation for each row.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>

layout(constant_id = 1) const uint STREAMS = 4;
layout(constant_id = 2) const bool READ_ONLY = false; // there is no update

layout(push_constant, scalar) uniform Push {
    Floats x;         // [rows, WIDTH]
    Floats bias;      // [WIDTH]
    Floats read;      // [rows, STREAMS]
    Floats update;    // [rows, STREAMS, STREAMS + 1]
    Step step;
    uint row_kind;
    uint rounds;
    float scale_read;
    float scale_write;
    float scale_between;
    float epsilon;
};

const uint WIDTH = READ_ONLY ? STREAMS : (STREAMS + 2) * STREAMS;

float between[STREAMS * STREAMS];

float sigmoid(float x) {
    return 1.0 / (1.0 + exp(-x));
}

float affine(uint row, uint index, float scale) {
    return x.at[row * WIDTH + index] * scale + bias.at[index];
}

// The softmax of each row of the factors between streams.
void load_between(uint row) {
    for (uint from = 0; from < STREAMS; from++) {
        float highest = -1.0 / 0.0;
        for (uint to = 0; to < STREAMS; to++) {
            between[from * STREAMS + to] = affine(row, (2 + from) * STREAMS + to, scale_between);
            highest = max(highest, between[from * STREAMS + to]);
        }
        float sum = 0.0;
        for (uint to = 0; to < STREAMS; to++) {
            between[from * STREAMS + to] = exp(between[from * STREAMS + to] - highest);
            sum += between[from * STREAMS + to];
        }
        for (uint to = 0; to < STREAMS; to++) {
            between[from * STREAMS + to] = between[from * STREAMS + to] / sum + epsilon;
        }
    }
}

// Divides each of the rows or columns by its sum: their values are `stride` apart, their first values `next`.
void divide_by_sums(uint stride, uint next) {
    for (uint line = 0; line < STREAMS; line++) {
        float sum = 0.0;
        for (uint i = 0; i < STREAMS; i++) sum += between[line * next + i * stride];
        for (uint i = 0; i < STREAMS; i++) between[line * next + i * stride] /= sum + epsilon;
    }
}

void main() {
    uint row = gl_GlobalInvocationID.x;
    if (row >= count_rows(step, row_kind)) return;
    for (uint i = 0; i < STREAMS; i++) read.at[row * STREAMS + i] = sigmoid(affine(row, i, scale_read)) + epsilon;
    if (READ_ONLY) return;
    load_between(row);
    for (uint round = 0; round < rounds; round++) {
        if (round > 0) divide_by_sums(1, STREAMS);
        divide_by_sums(STREAMS, 1);
    }
    for (uint i = 0; i < STREAMS; i++) {
        uint start = (row * STREAMS + i) * (STREAMS + 1);
        for (uint from = 0; from < STREAMS; from++) update.at[start + from] = between[from * STREAMS + i];
        update.at[start + STREAMS] = 2.0 * sigmoid(affine(row, STREAMS + i, scale_write));
    }
}
