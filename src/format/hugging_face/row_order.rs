//! Orders of rows that follow from the numbers of heads.

/// The rows of heads, from pairs in two halves to pairs of neighbours. `None` when the heads do not divide the rows.
pub(super) fn rotary_rows(rows: usize, heads: usize) -> Option<Vec<usize>> {
    let half = rows.checked_div(heads.checked_mul(2)?).filter(|half| half * 2 * heads == rows)?;
    let of_pair = move |head: usize, pair: usize| [0, 1].map(|side| head * 2 * half + side * half + pair);
    Some((0..heads).flat_map(|head| (0..half).flat_map(move |pair| of_pair(head, pair))).collect())
}

/// The rows of heads, from pairs of neighbours among the first `rotated` rows of a head to pairs in the halves of these. `None` when
/// the heads do not divide the rows.
pub(super) fn rows_in_halves(rows: usize, heads: usize, rotated: usize) -> Option<Vec<usize>> {
    let length = rows.checked_div(heads).filter(|length| length * heads == rows && rotated <= *length)?;
    let of_head = move |head: usize| {
        let in_halves = (0..rotated).step_by(2).chain((1..rotated).step_by(2));
        in_halves.chain(rotated..length).map(move |row| head * length + row)
    };
    Some((0..heads).flat_map(of_head).collect())
}

/// The indices after the first `before`, reordered so that the key head of value heads changes fastest.
pub(super) fn value_heads(length: usize, before: usize, [keys, values]: [usize; 2]) -> Option<Vec<usize>> {
    let of_key = values.checked_div(keys).filter(|of_key| of_key * keys == values)?;
    let size = length.checked_sub(before)?.checked_div(values)?;
    if size * values + before != length {
        return None;
    }
    let of_head = move |head: usize| before + head * size..before + (head + 1) * size;
    let heads = (0..of_key).flat_map(|value| (0..keys).map(move |key| key * of_key + value));
    Some((0..before).chain(heads.flat_map(of_head)).collect())
}

/// The rows of the parts from `first` to before `end` of each of `groups` groups, one part of all groups after the other. A group
/// has parts of these lengths.
pub(super) fn ungrouped(rows: usize, groups: usize, parts: &[usize], [first, end]: [usize; 2]) -> Option<Vec<usize>> {
    let group = parts.iter().try_fold(0usize, |sum, part| sum.checked_add(*part))?;
    if group == 0 || group.checked_mul(groups)? != rows {
        return None;
    }
    let of_part = |part: usize| {
        let start: usize = parts[..part].iter().sum();
        (0..groups).flat_map(move |of| of * group + start..of * group + start + parts[part])
    };
    Some((first..end).flat_map(of_part).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_a_head_become_neighbours() {
        assert_eq!(rotary_rows(8, 2), Some(vec![0, 2, 1, 3, 4, 6, 5, 7]));
        for (rows, heads) in [(8, 3), (6, 2), (8, 0)] {
            assert_eq!(rotary_rows(rows, heads), None, "{rows} rows of {heads} heads");
        }
    }

    #[test]
    fn neighbours_in_a_part_of_a_head_become_its_halves() {
        assert_eq!(rows_in_halves(12, 2, 4), Some(vec![0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]));
        assert_eq!(rows_in_halves(4, 2, 0), Some(vec![0, 1, 2, 3]));
        for (rows, heads, rotated) in [(8, 3, 2), (6, 2, 4), (8, 0, 2)] {
            assert_eq!(rows_in_halves(rows, heads, rotated), None, "{rows} rows of {heads} heads");
        }
    }

    #[test]
    fn the_key_head_of_value_heads_changes_fastest() {
        assert_eq!(value_heads(4, 0, [2, 4]), Some(vec![0, 2, 1, 3]));
        assert_eq!(value_heads(10, 2, [2, 4]), Some(vec![0, 1, 2, 3, 6, 7, 4, 5, 8, 9]));
        for (length, before, heads) in [(5, 0, [2, 4]), (4, 5, [2, 4]), (4, 0, [0, 4]), (4, 0, [3, 4]), (4, 0, [2, 0])]
        {
            assert_eq!(value_heads(length, before, heads), None, "{length}, {before}, {heads:?}");
        }
    }

    #[test]
    fn parts_of_groups_come_one_after_the_other() {
        assert_eq!(ungrouped(6, 2, &[1, 2], [0, 2]), Some(vec![0, 3, 1, 2, 4, 5]));
        assert_eq!(ungrouped(6, 2, &[1, 2], [1, 2]), Some(vec![1, 2, 4, 5]));
        for (rows, groups, parts) in [(6, 2, [1, 1]), (0, 2, [0, 0]), (6, 0, [1, 2])] {
            assert_eq!(ungrouped(rows, groups, &parts, [0, 2]), None, "{rows}, {groups}, {parts:?}");
        }
    }
}
