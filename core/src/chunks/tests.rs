use super::*;

#[test]
fn entries_keep_their_addresses() {
    let mut table = Chunks::default();
    assert!(table.get(0).is_none());
    table.set(0, 0);
    let first: *const usize = &table[0];
    (1..=3 * CHUNK).for_each(|number| table.set(number, number));
    table[CHUNK] += 7;
    assert!((0..=3 * CHUNK).all(|index| table[index] == index + if index == CHUNK { 7 } else { 0 }));
    assert_eq!((table.get(4 * CHUNK), first), (None, &raw const table[0]));
}
