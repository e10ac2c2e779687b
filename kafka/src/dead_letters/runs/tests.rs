use proptest::prelude::*;

use super::*;

const END: i64 = 60;

proptest! {
    /// Runs answer as an array of states does.
    #[test]
    fn runs_equal_a_plain_array(
        steps in prop::collection::vec((0..END, 0..20_i64, prop::option::of(0..3_usize)), 0..40),
        from in 0..END,
        to in 0..END,
    ) {
        let (mut runs, mut plain) = (Runs::default(), [None; END as usize]);
        for (start, length, state) in steps {
            let (end, state) = ((start + length).min(END), state.map(|at| DoneState::VARIANTS[at]));
            runs.set(start..end, state);
            (start..end).for_each(|offset| plain[offset as usize] = state);
            prop_assert!((0..END).all(|offset| runs.state(offset) == plain[offset as usize]));
            // Runs are as long as they can be.
            let all: Vec<_> = runs.0.iter().map(|(start, (end, state))| (*start, *end, *state)).collect();
            prop_assert!(all.iter().all(|(start, end, _)| start < end));
            prop_assert!(all.windows(2).all(|two| two[0].1 < two[1].0 || two[0].1 == two[1].0 && two[0].2 != two[1].2));
        }
        let open = |offset: &i64| plain.get(*offset as usize).is_none_or(Option::is_none);
        prop_assert_eq!(runs.first_open(from), (from..).find(open).unwrap());
        let done = (from..to).filter(|offset| !open(offset)).count() as u64;
        prop_assert_eq!(runs.count(from..to), done);
        let gaps: Vec<i64> = runs.gaps(from..to).into_iter().flatten().collect();
        prop_assert_eq!(gaps, (from..to).filter(open).collect::<Vec<_>>());
        let within: Vec<_> = runs.within(from..to).flat_map(|(run, state)| run.map(move |at| (at, state))).collect();
        let expected: Vec<_> = (from..to).filter_map(|at| Some((at, plain[at as usize]?))).collect();
        prop_assert_eq!(within, expected);
    }
}
