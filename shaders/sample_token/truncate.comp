#version 460
// Applies the truncations to a row, one workgroup per row.
//
// The best token is the result of greedy sampling, and identifies rows that are not a distribution. For a draw the
// shader finds the cutoff, the last token by rank that is kept. Each truncation needs the first position in the ranking
// at which a sum (of tokens or of weights) reaches a goal. Magnitudes and token numbers are integers, so the search
// divides their range into four until one value is left.

#extension GL_GOOGLE_include_directive : require
#include "row.glsl"

layout(constant_id = 1) const uint NEAR_TOKENS = 512;

// The bits of 12.0. Tokens with scaled logits of at least -12 are few, and they are usually sufficient.
const uint NEAR_MAGNITUDE = 0x41400000u;

// The tokens near the best: magnitude and number.
shared uvec2 near[NEAR_TOKENS];
shared uint near_count;

// The row of this workgroup, and the cutoff so far.
Floats values;
float largest;
float inverse_temperature;
uvec2 cutoff;
// The sum of the weights of all kept tokens.
uint64_t total;
// Whether a search needs to read only the tokens in `near`.
bool searches_near;

shared uint64_t triples[3 * WORKGROUP_SIZE];

// Sums three numbers over the workgroup in one tree. All invocations must call it.
void sum_triples(inout uint64_t sums[3]) {
    uint lane = gl_LocalInvocationID.x;
    for (uint i = 0; i < 3; i++) triples[i * WORKGROUP_SIZE + lane] = sums[i];
    barrier();
    for (uint stride = WORKGROUP_SIZE / 2; stride > 0; stride /= 2) {
        for (uint i = 0; lane < stride && i < 3; i++) {
            triples[i * WORKGROUP_SIZE + lane] += triples[i * WORKGROUP_SIZE + lane + stride];
        }
        barrier();
    }
    for (uint i = 0; i < 3; i++) sums[i] = triples[i * WORKGROUP_SIZE];
    barrier();
}

const uint COUNTS = 0; // counts tokens by magnitude
const uint WEIGHS = 1; // sums weights by magnitude
const uint COUNTS_EQUALS = 2; // counts the tokens with the magnitude of the cutoff, by token number

// The sums of the kept tokens up to each of three limits.
void measure(uint what, uvec3 limits, out uint64_t sums[3]) {
    sums[0] = sums[1] = sums[2] = uint64_t(0);
    uint count = searches_near ? near_count : vocab_size;
    for (uint index = gl_LocalInvocationID.x; index < count; index += WORKGROUP_SIZE) {
        uvec2 token = searches_near ? near[index]
                                    : uvec2(magnitude(values.at[index], largest, inverse_temperature), index);
        if (token.x > cutoff.x || (token.x == cutoff.x && token.y > cutoff.y)) continue;
        if (what == COUNTS_EQUALS && token.x != cutoff.x) continue;
        uint key = what == COUNTS_EQUALS ? token.y : token.x;
        uint64_t share = what == WEIGHS ? weight(token.x) : uint64_t(1);
        for (uint i = 0; i < 3; i++) {
            if (key <= limits[i]) sums[i] += share;
        }
    }
    sum_triples(sums);
}

// The first key at which the sum reaches the goal. The sum at `last` must reach it. `before` and `upto` are the sums
// before and including that key.
uint search(uint what, uint last, uint64_t sum_at_last, uint64_t goal, out uint64_t before, out uint64_t upto) {
    uint first = 0;
    before = 0;
    upto = sum_at_last;
    while (first < last) {
        uint quarter = (last - first) / 4;
        uvec3 limits = first + uvec3(1, 2, 3) * quarter;
        uint64_t sums[3];
        measure(what, limits, sums);
        for (uint i = 0; i < 3; i++) {
            if (sums[i] >= goal) {
                last = limits[i];
                upto = sums[i];
                break;
            }
            first = limits[i] + 1;
            before = sums[i];
        }
    }
    return last;
}

// Moves the cutoff to the position at which the sum of the kept tokens reaches the goal. It stays if the sum never
// does.
void cut(uint what, uint64_t goal) {
    uint last = searches_near ? min(cutoff.x, NEAR_MAGNITUDE) : cutoff.x;
    uint64_t sums[3];
    measure(what, uvec3(last), sums);
    if (sums[0] < goal) return;
    uint64_t before, upto;
    uint found = search(what, last, sums[0], goal, before, upto);
    if (found < cutoff.x) cutoff = uvec2(found, 0xffffffffu);
    // Of tokens with equal logits, keep only as many as needed, the lowest numbers first.
    uint64_t each = what == WEIGHS ? weight(found) : uint64_t(1);
    uint64_t needed = (goal - before + each - 1) / each;
    uint64_t equals = (upto - before) / each;
    if (needed < equals) cutoff.y = search(COUNTS_EQUALS, vocab_size - 1, equals, needed, before, upto);
}

// ceil(share * total), as in weight.rs.
uint64_t share_of(uint64_t total, uint64_t share) {
    return product_high(total, share) + (total * share != 0 ? 1 : 0);
}

// Collects the tokens near the best, and determines whether they are sufficient for the searches.
void gather_near(Params row_params) {
    if (gl_LocalInvocationID.x == 0) near_count = 0;
    barrier();
    uint64_t count = 0, total_near = 0;
    total = 0;
    for (uint token = gl_LocalInvocationID.x; token < vocab_size; token += WORKGROUP_SIZE) {
        uint far = magnitude(values.at[token], largest, inverse_temperature);
        if (far > cutoff.x) continue;
        uint64_t share = row_params.top_k == 0 ? weight(far) : uint64_t(0);
        count += 1;
        total += share;
        if (far > NEAR_MAGNITUDE) continue;
        total_near += share;
        uint entry = atomicAdd(near_count, 1);
        if (entry < NEAR_TOKENS) near[entry] = uvec2(far, token);
    }
    uint64_t sums[3] = uint64_t[3](count, total, total_near);
    sum_triples(sums);
    count = sums[0];
    total = sums[1];
    total_near = sums[2];
    uint found = near_count;
    bool is_enough = row_params.top_k > 0 ? found >= row_params.top_k : total_near >= share_of(total, row_params.top_p);
    searches_near = found <= NEAR_TOKENS && (is_enough || uint64_t(found) == count);
}

void truncate(Params row_params) {
    cutoff = uvec2(row_params.floor, 0xffffffffu);
    if (row_params.top_k == 0 && row_params.top_p == 0) return;
    gather_near(row_params);
    if (row_params.top_k > 0) {
        cut(COUNTS, uint64_t(row_params.top_k));
        uint64_t sums[3];
        measure(WEIGHS, uvec3(cutoff.x), sums);
        total = sums[0];
    }
    if (row_params.top_p > 0) cut(WEIGHS, share_of(total, row_params.top_p));
}

void main() {
    uint row = gl_WorkGroupID.y;
    if (row >= count_rows(step, row_kind)) return;
    uint lane = gl_LocalInvocationID.x;
    Params row_params = params.of[row];
    if (row_params.mode == NOTHING) {
        if (lane == 0) sampled.at[row] = -1.0;
        return;
    }
    uint64_t first = 0;
    for (uint index = lane; index < tiles; index += WORKGROUP_SIZE) first = max(first, best.at[row * tiles + index]);
    first = workgroup_max(first);
    uint order = uint(first >> 32);
    uint token = ~uint(first);
    values = row_logits(row);
    largest = values.at[token];
    bool is_faulty = order == 0xffffffffu;
    bool is_empty = order == 0x007fffffu; // minus infinity
    bool has_result = is_faulty || is_empty || row_params.mode == BEST;
    if (!has_result) {
        inverse_temperature = row_params.inverse_temperature;
        truncate(row_params);
    }
    if (lane != 0) return;
    states.of[row] = State(has_result ? 1 : 0, largest, cutoff.x, cutoff.y);
    if (has_result) sampled.at[row] = is_faulty ? -2.0 - float(token) : is_empty ? -1.0 : float(token);
}
