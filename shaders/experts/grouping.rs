//! Rows sorted by expert.

use std::ops::Range;

/// Routes grouped by expert. A *pair* is a row and one of its experts. The pairs of an expert are consecutive, in the
/// order of their rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Grouping {
    /// The route of each pair: route `row * top_k + k` is the `k`-th route of a row.
    pub routes: Vec<usize>,
    /// The pair of each route; `None` where the expert is computed elsewhere.
    pub pair_of_route: Vec<Option<usize>>,
    /// The experts in use, ascending, with their pairs.
    pub groups: Vec<Group>,
    /// The group of each pair.
    group_of_pair: Vec<u32>,
}

/// An expert and its pairs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    pub expert: usize,
    pub pairs: Range<usize>,
}

impl Grouping {
    /// Groups routes by the slots of their experts in the tensors, each below `slots`; `None` for experts that are
    /// computed elsewhere.
    ///
    /// # Panics
    /// When the slot of a route is not below `slots`.
    pub fn new(routes: impl Iterator<Item = Option<usize>>, slots: usize) -> Self {
        let experts: Vec<Option<usize>> = routes.collect();
        let mut ends = vec![0; slots];
        for expert in experts.iter().flatten() {
            ends[*expert] += 1;
        }
        let (mut groups, mut pairs) = (Vec::new(), 0);
        for (expert, count) in ends.iter_mut().enumerate().filter(|(_, count)| **count > 0) {
            groups.push(Group { expert, pairs: pairs..pairs + *count });
            // From now on `count` is the index of the expert's next pair.
            (*count, pairs) = (pairs, pairs + *count);
        }
        let mut routes = vec![0; pairs];
        let mut pair_of_route = vec![None; experts.len()];
        for (route, expert) in experts.iter().enumerate() {
            if let Some(expert) = expert {
                let pair = ends[*expert];
                ends[*expert] += 1;
                routes[pair] = route;
                pair_of_route[route] = Some(pair);
            }
        }
        let numbered = (0..).zip(&groups);
        let group_of_pair =
            numbered.flat_map(|(number, group)| std::iter::repeat_n(number, group.pairs.len())).collect();
        Grouping { routes, pair_of_route, groups, group_of_pair }
    }

    /// All pairs of the expert of `pair`.
    pub fn group_of(&self, pair: usize) -> Range<usize> {
        self.groups[self.group_of_pair[pair] as usize].pairs.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn each_route_is_in_the_group_of_its_expert_in_row_order(
            routes in prop::collection::vec((-1..6_i32, -1..6_i32), 0..20),
        ) {
            let experts: Vec<i32> = routes.iter().flat_map(|&(a, b)| [a, b]).collect();
            let grouping = Grouping::new(experts.iter().map(|expert| usize::try_from(*expert).ok()), 6);
            let computed = experts.iter().filter(|expert| **expert >= 0).count();
            prop_assert_eq!(grouping.routes.len(), computed);
            for (route, &expert) in experts.iter().enumerate() {
                prop_assert_eq!(grouping.pair_of_route[route].is_some(), expert >= 0);
                if let Some(pair) = grouping.pair_of_route[route] {
                    prop_assert_eq!(grouping.routes[pair], route);
                }
            }
            for group in &grouping.groups {
                let routes = &grouping.routes[group.pairs.clone()];
                prop_assert!(!routes.is_empty() && routes.is_sorted());
                prop_assert!(routes.iter().all(|route| experts[*route] == group.expert as i32));
                prop_assert!(group.pairs.clone().all(|pair| grouping.group_of(pair) == group.pairs));
            }
        }
    }
}
