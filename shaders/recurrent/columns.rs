//! How a GPU shares the columns of a state (`recurrent/columns.glsl`).

/// Columns of a workgroup.
pub(crate) const GROUP_COLUMNS: usize = 32;

/// The number of slices of a column, each with an invocation of its own: a power of two that divides its rows.
pub(crate) fn column_slices(rows: usize, max_workgroup_size: usize) -> usize {
    let divides = |slices: &usize| rows.is_multiple_of(*slices) && GROUP_COLUMNS * slices <= max_workgroup_size;
    [8, 4, 2].into_iter().find(divides).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_divide_a_column_and_fit_a_workgroup() {
        assert_eq!([128, 20, 6, 7].map(|rows| column_slices(rows, 1024)), [8, 4, 2, 1]);
        assert_eq!(column_slices(128, 128), 4);
    }

    #[test]
    fn the_shader_has_as_many_columns() {
        assert!(include_str!("columns.glsl").contains(&format!("const uint COLUMNS = {GROUP_COLUMNS};")));
    }
}
