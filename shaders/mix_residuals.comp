#version 460
// A mean of the residual and of earlier ones, weighted by how they match a vector: one workgroup for each row.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/reduce.glsl>

layout(constant_id = 1) const uint RESIDUALS = 2; // the earlier ones and the residual itself

layout(push_constant, scalar) uniform Push {
    Floats kept;      // [rows, count, width]
    Floats x;         // [rows, width]
    Floats weight;    // [width]
    Floats y;         // [rows, width]
    Step step;
    uint row_kind;
    uint width;
    uint count;       // of earlier residuals
    float epsilon;
};

float scores[RESIDUALS];

float residual(uint row, uint index, uint column) {
    return index < count ? kept.at[(row * count + index) * width + column] : x.at[row * width + column];
}

void main() {
    uint row = gl_WorkGroupID.y;
    if (row >= count_rows(step, row_kind)) return;
    float highest = -1.0 / 0.0;
    for (uint index = 0; index < RESIDUALS; index++) {
        float squares = 0.0;
        float products = 0.0;
        for (uint i = gl_LocalInvocationID.x; i < width; i += WORKGROUP_SIZE) {
            float value = residual(row, index, i);
            squares = fma(value, value, squares);
            products = fma(value, weight.at[i], products);
        }
        squares = workgroup_sum(squares);
        products = workgroup_sum(products);
        scores[index] = products / sqrt(squares / float(width) + epsilon);
        highest = max(highest, scores[index]);
    }
    float sum = 0.0;
    for (uint index = 0; index < RESIDUALS; index++) {
        scores[index] = exp(scores[index] - highest);
        sum += scores[index];
    }
    for (uint i = gl_LocalInvocationID.x; i < width; i += WORKGROUP_SIZE) {
        float value = 0.0;
        for (uint index = 0; index < RESIDUALS; index++) value = fma(scores[index] / sum, residual(row, index, i), value);
        y.at[row * width + i] = value;
    }
}
