//! Prompts that are too long, of clients that let them be cut.

use cuelight_engine::engine::TokenId;

/// Removes tokens from the start of a prompt until `most` are left, and returns whether any were removed. A BOS at the start stays,
/// because models expect it there.
pub(crate) fn keep_end(tokens: &mut Vec<TokenId>, most: usize, bos: Option<TokenId>) -> bool {
    let excess = tokens.len().saturating_sub(most);
    if excess == 0 {
        return false;
    }
    let from = usize::from(most > 1 && bos.is_some() && tokens.first().copied() == bos);
    tokens.drain(from..from + excess);
    true
}

#[cfg(test)]
mod tests {
    use super::keep_end;

    #[test]
    fn the_end_and_the_bos_are_kept() {
        let cut = |most: usize, bos: Option<u32>| {
            let mut tokens = vec![1, 2, 3, 4];
            (keep_end(&mut tokens, most, bos), tokens)
        };
        assert_eq!(cut(4, Some(1)), (false, vec![1, 2, 3, 4]));
        assert_eq!(cut(3, Some(1)), (true, vec![1, 3, 4]));
        assert_eq!(cut(2, Some(1)), (true, vec![1, 4]));
        assert_eq!(cut(1, Some(1)), (true, vec![4]));
        assert_eq!(cut(2, Some(9)), (true, vec![3, 4]));
        assert_eq!(cut(2, None), (true, vec![3, 4]));
    }
}
