#version 460
// What is kept of a row: one workgroup a row.
//
// The best token settles a greedy choice, and a row that is no distribution. For a draw it finds the cutoff, the last token
// by rank that is kept: each truncation asks for the first place in the ranking at which a sum (of tokens, or of weights)
// reaches a goal. Ranks are bits of numbers, so the place is searched for by dividing their range in four until one is left.

#extension GL_GOOGLE_include_directive : require
#include "row.glsl"

layout(constant_id = 1) const uint NEAR_TOKENS = 512;

// Scaled logits down to -12 rarely leave out what matters, and are few.
const uint NEAR_MAGNITUDE = 0x41400000u;

// A token as a search sees it: magnitude and number.
shared uvec2 near[NEAR_TOKENS];
shared uint near_count;

// The row that this workgroup looks at, and what is kept so far.
Floats values;
float largest;
float inverse_temperature;
uvec2 cutoff;
// The sum of the weights of all that is kept.
uint64_t total;
// Whether the tokens in `near` are all that a search needs to see.
bool searches_near;

shared uint64_t triples[3 * WORKGROUP_SIZE];

// The sums of every invocation's three numbers, in all of them: one tree for all three.
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

const uint COUNTS = 0; // tokens by magnitude
const uint WEIGHS = 1; // weights by magnitude
const uint COUNTS_EQUALS = 2; // tokens of the cutoff's magnitude by their numbers

// For each of three limits, what is kept up to it.
void measure(uint what, uvec3 limits, out uint64_t sums[3]) {
    sums[0] = sums[1] = sums[2] = uint64_t(0);
    uint count = searches_near ? near_count : vocab_size;
    for (uint index = gl_LocalInvocationID.x; index < count; index += WORKGROUP_SIZE) {
        uvec2 token = searches_near ? near[index]
                                    : uvec2(magnitude(values.at[index], largest, inverse_temperature), index);
        if (token.x > cutoff.x || (token.x == cutoff.x && token.y > cutoff.y)) continue;
        if (what == COUNTS_EQUALS && token.x != cutoff.x) continue;
        uint place = what == COUNTS_EQUALS ? token.y : token.x;
        uint64_t share = what == WEIGHS ? weight(token.x) : uint64_t(1);
        for (uint i = 0; i < 3; i++) {
            if (place <= limits[i]) sums[i] += share;
        }
    }
    sum_triples(sums);
}

// The first place at which the sum reaches the goal, which it does at the last. `before` and `upto` are the sums just before it
// and with it.
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

// Moves the cutoff to where the sum of what is kept reaches the goal; leaves it where it never does.
void cut(uint what, uint64_t goal) {
    uint last = searches_near ? min(cutoff.x, NEAR_MAGNITUDE) : cutoff.x;
    uint64_t sums[3];
    measure(what, uvec3(last), sums);
    if (sums[0] < goal) return;
    uint64_t before, upto;
    uint place = search(what, last, sums[0], goal, before, upto);
    if (place < cutoff.x) cutoff = uvec2(place, 0xffffffffu);
    // Of equals the lower numbers are kept, as many as are needed.
    uint64_t each = what == WEIGHS ? weight(place) : uint64_t(1);
    uint64_t needed = (goal - before + each - 1) / each;
    uint64_t equals = (upto - before) / each;
    if (needed < equals) cutoff.y = search(COUNTS_EQUALS, vocab_size - 1, equals, needed, before, upto);
}

// ceil(share * total), as in weight.rs.
uint64_t share_of(uint64_t total, uint64_t share) {
    return product_high(total, share) + (total * share != 0 ? 1 : 0);
}

// Puts the tokens near the best at hand, and finds out whether they are enough.
void gather_near(Choice choice) {
    if (gl_LocalInvocationID.x == 0) near_count = 0;
    barrier();
    uint64_t count = 0, total_near = 0;
    total = 0;
    for (uint token = gl_LocalInvocationID.x; token < vocab_size; token += WORKGROUP_SIZE) {
        uint far = magnitude(values.at[token], largest, inverse_temperature);
        if (far > cutoff.x) continue;
        uint64_t share = choice.top_k == 0 ? weight(far) : uint64_t(0);
        count += 1;
        total += share;
        if (far > NEAR_MAGNITUDE) continue;
        total_near += share;
        uint place = atomicAdd(near_count, 1);
        if (place < NEAR_TOKENS) near[place] = uvec2(far, token);
    }
    uint64_t sums[3] = uint64_t[3](count, total, total_near);
    sum_triples(sums);
    count = sums[0];
    total = sums[1];
    total_near = sums[2];
    uint found = near_count;
    bool reach = choice.top_k > 0 ? found >= choice.top_k : total_near >= share_of(total, choice.top_p);
    searches_near = found <= NEAR_TOKENS && (reach || uint64_t(found) == count);
}

void truncate(Choice choice) {
    cutoff = uvec2(choice.floor, 0xffffffffu);
    if (choice.top_k == 0 && choice.top_p == 0) return;
    gather_near(choice);
    if (choice.top_k > 0) {
        cut(COUNTS, uint64_t(choice.top_k));
        uint64_t sums[3];
        measure(WEIGHS, uvec3(cutoff.x), sums);
        total = sums[0];
    }
    if (choice.top_p > 0) cut(WEIGHS, share_of(total, choice.top_p));
}

void main() {
    uint row = gl_WorkGroupID.y;
    if (row >= count_rows(step, row_kind)) return;
    uint lane = gl_LocalInvocationID.x;
    Choice choice = choices.of[row];
    if (choice.kind == NOTHING) {
        if (lane == 0) chosen.at[row] = -1.0;
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
    bool settled = is_faulty || is_empty || choice.kind == BEST;
    if (!settled) {
        inverse_temperature = choice.inverse_temperature;
        truncate(choice);
    }
    if (lane != 0) return;
    states.of[row] = State(settled ? 1 : 0, largest, cutoff.x, cutoff.y);
    if (settled) chosen.at[row] = is_faulty ? -2.0 - float(token) : is_empty ? -1.0 : float(token);
}
