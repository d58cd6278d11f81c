#version 460
// Attention of one row to its sequence, as in `attend.comp`, but with sums in another order, so that all loads of a round of
// positions are under way at once: one workgroup for each row, KV head and tile of query heads, and with SPLIT also for
// each piece of the context.
//
// In a round each invocation computes the scores of one position. For the values, invocations form GROUPS groups: each
// sums those of every GROUPS-th position, an invocation eight dimensions of them. At the end the sums of the groups are
// added. If a row does not see adjacent positions, `index` is that of a cell.

#extension GL_GOOGLE_include_directive : require
#include <gpu/common.glsl>
#include <gpu/softcap.glsl>
#include <attention/cache.glsl>
#include <attention/pieces.glsl>
#include <attention/heads.glsl>

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(constant_id = 1) const uint HEADS = 1;        // of a tile
layout(constant_id = 2) const bool SPLIT = false;
layout(constant_id = 6) const uint SELECTED = 0; // a row sees only selected positions: those of a pool; 0: all positions

#include <attention/attend.glsl>
#include <attention/selection.glsl>
#include <attention/row_tile.glsl>

// The loads of an invocation that are under way at once.
const uint KEYS_AHEAD = 16;
const uint VALUES_AHEAD = 8;

const uint KEY_OCTETS = KEY_STRIDE / 8;
const uint VALUE_OCTETS = (VALUE_DIM + 7) / 8;
const uint GROUPS = WORKGROUP_SIZE / VALUE_OCTETS;

// Quads of heads.
const uint FOURS = (HEADS + 3) / 4;

// Quads that an invocation sums.
const uint SUMS = 2 * HEADS;

// The invocations that reduce values before all others do.
const uint PARTS = 16;

// The sums of the groups need the most shared memory, and are in it last.
const uint QUADS_OF_QUERIES = HEADS * 2 * KEY_OCTETS;
const uint FIRST_WEIGHT = QUADS_OF_QUERIES;
const uint FIRST_PART = FIRST_WEIGHT + FOURS * WORKGROUP_SIZE;
const uint QUADS_IN_LOOP = FIRST_PART + FOURS * PARTS;
const uint QUADS_OF_SUMS = HEADS * GROUPS * 2 * VALUE_OCTETS;
shared vec4 memory[QUADS_IN_LOOP > QUADS_OF_SUMS ? QUADS_IN_LOOP : QUADS_OF_SUMS];
shared Softmax softmaxes[HEADS]; // at the end
shared uint slots[WORKGROUP_SIZE]; // of the cells of a round

uint lane = gl_LocalInvocationID.x;
uint group = lane / VALUE_OCTETS;  // those after the last have no positions

void load_queries() {
    for (uint i = lane; i < QUADS_OF_QUERIES; i += WORKGROUP_SIZE) {
        uint head = i / (2 * KEY_OCTETS);
        uint row_and_head = row * n_heads + first_head + head;
        memory[i] = head < heads ? load_query(row_and_head, i % (2 * KEY_OCTETS)) : vec4(0.0);
    }
}

void find_slot(uint index) {
    slots[lane] = slot_of(cell_at(index));
}

// The scores of the position at `index` for all heads.
void score(uint index, inout vec4 scores[FOURS]) {
    Place place = place_of(true, slots[lane]);
    vec4 sums[HEADS];
    [[unroll]] for (uint h = 0; h < HEADS; h++) sums[h] = vec4(0.0);
    for (uint first = 0; first < KEY_OCTETS; first += KEYS_AHEAD) {
        Octet octets[KEYS_AHEAD];
        [[unroll]] for (uint o = 0; o < KEYS_AHEAD; o++) {
            if (first + o >= KEY_OCTETS) continue;
            octets[o] = load_octet(place.record, KEY_STRIDE, place.slots, place.slot, first + o);
        }
        [[unroll]] for (uint o = 0; o < KEYS_AHEAD; o++) {
            if (first + o >= KEY_OCTETS) continue;
            vec4 low = octet_values(octets[o], 0);
            vec4 high = octet_values(octets[o], 1);
            [[unroll]] for (uint h = 0; h < HEADS; h++) {
                uint start = 2 * (h * KEY_OCTETS + first + o);
                sums[h] = fma(low, memory[start], sums[h]);
                sums[h] = fma(high, memory[start + 1], sums[h]);
            }
        }
    }
    [[unroll]] for (uint h = 0; h < HEADS; h++) {
        scores[h / 4][h % 4] = score_of(sums[h], first_head + h, own_position, cell_at(index).position);
    }
}

// The largest or the sum of the values of all invocations, of a quad of heads.
vec4 reduced(uint four, vec4 value, bool for_largest) {
    uint first = FIRST_WEIGHT + four * WORKGROUP_SIZE;
    uint first_part = FIRST_PART + four * PARTS;
    memory[first + lane] = value;
    barrier();
    if (lane < PARTS) {
        [[unroll]] for (uint i = lane + PARTS; i < WORKGROUP_SIZE; i += PARTS) {
            value = for_largest ? max(value, memory[first + i]) : value + memory[first + i];
        }
        memory[first_part + lane] = value;
    }
    barrier();
    vec4 all = memory[first_part];
    [[unroll]] for (uint i = 1; i < PARTS; i++) {
        all = for_largest ? max(all, memory[first_part + i]) : all + memory[first_part + i];
    }
    return all;
}

// Loads values of positions of the invocation's group, from `first` of the round on. After the last it repeats that.
void load_values(uint first, uint count, out Octet octets[VALUES_AHEAD]) {
    [[unroll]] for (uint p = 0; p < VALUES_AHEAD; p++) {
        Place place = place_of(false, slots[min(first + p * GROUPS, count - 1)]);
        octets[p] = load_octet(place.record, VALUE_STRIDE, place.slots, place.slot, lane % VALUE_OCTETS);
    }
}

void add_values(uint first, uint count, Octet octets[VALUES_AHEAD], inout vec4 sums[SUMS]) {
    [[unroll]] for (uint p = 0; p < VALUES_AHEAD; p++) {
        uint index = first + p * GROUPS;
        if (index >= count) continue;
        vec4 low = octet_values(octets[p], 0);
        vec4 high = octet_values(octets[p], 1);
        [[unroll]] for (uint h = 0; h < HEADS; h++) {
            float weight = memory[FIRST_WEIGHT + h / 4 * WORKGROUP_SIZE + index][h % 4];
            sums[2 * h] = fma(vec4(weight), low, sums[2 * h]);
            sums[2 * h + 1] = fma(vec4(weight), high, sums[2 * h + 1]);
        }
    }
}

// Replaces the scores of a quad of heads by weights, and multiplies what was summed before by the factor that it gets.
void weigh(uint four, vec4 scores, inout vec4 largest, inout vec4 total, inout vec4 sums[SUMS]) {
    vec4 before = largest;
    largest = max(before, reduced(four, scores, true));
    vec4 factor = exp(before - largest);
    vec4 weights = exp(scores - largest);
    total = fma(total, factor, weights);
    memory[FIRST_WEIGHT + four * WORKGROUP_SIZE + lane] = weights;
    [[unroll]] for (uint h = 0; h < 4; h++) {
        if (4 * four + h >= HEADS) break;
        sums[2 * (4 * four + h)] *= factor[h];
        sums[2 * (4 * four + h) + 1] *= factor[h];
    }
}

// Adds the sums of all groups, and writes them.
void write(uint piece, vec4 sums[SUMS], vec4 largest[FOURS], vec4 total[FOURS]) {
    barrier();
    [[unroll]] for (uint h = 0; h < HEADS; h++) {
        if (lane == 0) softmaxes[h] = Softmax(largest[h / 4][h % 4], total[h / 4][h % 4]);
        if (group >= GROUPS) continue;
        uint start = 2 * ((h * GROUPS + group) * VALUE_OCTETS + lane % VALUE_OCTETS);
        memory[start] = sums[2 * h];
        memory[start + 1] = sums[2 * h + 1];
    }
    barrier();
    for (uint i = lane; i < heads * VALUE_QUADS; i += WORKGROUP_SIZE) {
        uint head = i / VALUE_QUADS;
        uint quad = i % VALUE_QUADS;
        vec4 sum = vec4(0.0);
        for (uint g = 0; g < GROUPS; g++) sum += memory[2 * (head * GROUPS + g) * VALUE_OCTETS + quad];
        write_gathered(row, gl_WorkGroupID.y, first_head + head, piece, quad, sum, softmaxes[head]);
    }
}

void main() {
    uvec2 range;
    uint piece;
    if (!find_work(range, piece)) return;
    load_queries();
    vec4 sums[SUMS];
    [[unroll]] for (uint i = 0; i < SUMS; i++) sums[i] = vec4(0.0);
    vec4 largest[FOURS];
    vec4 total[FOURS];
    [[unroll]] for (uint f = 0; f < FOURS; f++) {
        largest[f] = vec4(-1.0 / 0.0);
        total[f] = vec4(0.0);
    }
    for (uint start = range.x; start < range.y; start += WORKGROUP_SIZE) {
        uint count = min(range.y - start, WORKGROUP_SIZE);
        barrier();
        if (lane < count) find_slot(start + lane);
        barrier();
        Octet octets[VALUES_AHEAD];
        load_values(group, count, octets);
        vec4 scores[FOURS];
        [[unroll]] for (uint f = 0; f < FOURS; f++) scores[f] = vec4(-1.0 / 0.0);
        if (lane < count) score(start + lane, scores);
        [[unroll]] for (uint f = 0; f < FOURS; f++) weigh(f, scores[f], largest[f], total[f], sums);
        barrier();
        add_values(group, count, octets, sums);
        for (uint first = group + VALUES_AHEAD * GROUPS; first < count; first += VALUES_AHEAD * GROUPS) {
            load_values(first, count, octets);
            add_values(first, count, octets, sums);
        }
    }
    barrier();
    [[unroll]] for (uint f = 0; f < FOURS; f++) total[f] = reduced(f, total[f], false);
    write(piece, sums, largest, total);
}
