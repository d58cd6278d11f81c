// Results of few rows: a workgroup computes OUTPUTS results of each of ROWS rows, so that the rows share the unpacked
// weights.
//
// Invocation l adds the runs l, l + WORKGROUP_SIZE, ... The sums of the invocations are added in a tree. So the bits of
// a result depend neither on the other rows nor on the number of rows or outputs of a workgroup.

layout(constant_id = 0) const uint WORKGROUP_SIZE = 32;
layout(constant_id = 1) const uint ROWS = 1;
layout(constant_id = 2) const uint OUTPUTS = 4;

shared float sums[ROWS * OUTPUTS][WORKGROUP_SIZE];

// The including shader defines the rows and outputs of a workgroup.
bool has_row(uint r);
vec4 input_quad(uint r, uint column);
Run weight_run(uint o, uint index);

// Adds the products of one run to `sum`.
float multiply(Run run, uint r, uint column, float sum) {
    vec4 products[2] = vec4[2](vec4(0.0), vec4(0.0));
    vec4 inputs[2] = vec4[2](vec4(0.0), vec4(0.0));
    [[unroll]] for (uint q = 0; q < QUADS; q++) {
        vec4 quad = input_quad(r, column + 4 * q);
        products[group_of(q)] = fma(run.codes[q], quad, products[group_of(q)]);
        if (MINIMUM) inputs[group_of(q)] += quad;
    }
    [[unroll]] for (uint g = 0; g < GROUPS; g++) {
        sum = fma(run.scale[g], (products[g].x + products[g].y) + (products[g].z + products[g].w), sum);
        if (MINIMUM) sum = fma(run.minimum[g], (inputs[g].x + inputs[g].y) + (inputs[g].z + inputs[g].w), sum);
    }
    return sum;
}

// Computes the results: result o of row r is in sums[r * OUTPUTS + o][0]. All invocations must call it.
void form_results(uint runs) {
    uint lane = gl_LocalInvocationID.x;
    float partial[ROWS * OUTPUTS];
    [[unroll]] for (uint i = 0; i < ROWS * OUTPUTS; i++) partial[i] = 0.0;
    for (uint index = lane; index < runs; index += WORKGROUP_SIZE) {
        [[unroll]] for (uint o = 0; o < OUTPUTS; o++) {
            Run run = weight_run(o, index);
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                if (has_row(r)) partial[r * OUTPUTS + o] = multiply(run, r, index * 32, partial[r * OUTPUTS + o]);
            }
        }
    }

    [[unroll]] for (uint i = 0; i < ROWS * OUTPUTS; i++) sums[i][lane] = partial[i];
    barrier();
    for (uint stride = WORKGROUP_SIZE / 2; stride > 0; stride /= 2) {
        if (lane < stride) {
            [[unroll]] for (uint i = 0; i < ROWS * OUTPUTS; i++) sums[i][lane] += sums[i][lane + stride];
        }
        barrier();
    }
}
