//! The hold that each member ought to have.
//!
//! All members compute it from the loads that the posts carry. Views may differ for the time of an exchange; that costs
//! fairness only, never the promise.
//!
//! In shape mode, the demand of all clients fills the capacity by weighted max-min, as fair queueing in one instance
//! does, and a member's target is its part of what each client gets, by the client's demand there. A small standby is
//! kept from that for members without demand. In reject mode, each client's grant in whole records is split over the
//! members by the client's demand there.

use std::{collections::BTreeMap, sync::Arc};

use super::record::{Key, Load, Loads};
use super::{GroupParams, Mode};
use crate::allocator::{AllocationParams, Allocator, Claim, Credit, Fixed, Grant, Wants};
use crate::policy::{Lending, Policy};
use crate::units::{Ratio, Weight};

/// The weights of clients, and the rules of lending.
#[derive(Debug, Clone)]
pub struct Shares {
    listed: BTreeMap<Arc<str>, Weight>,
    unlisted: Weight,
    reservation: Ratio,
    lending: Lending,
}

impl Shares {
    /// The weights and rules of a policy.
    pub fn new(policy: &Policy) -> Shares {
        Shares {
            listed: policy.clients.iter().map(|client| (client.name.as_str().into(), client.weight)).collect(),
            unlisted: policy.unlisted_weight,
            reservation: policy.reservation,
            lending: policy.lending,
        }
    }

    /// The weights of clients in a common unit: the unlisted ones together weigh at most `unlisted_weight`, once any
    /// client is listed.
    fn relative(&self, clients: &BTreeMap<Arc<str>, Load>) -> Vec<u64> {
        let unlisted = clients.keys().filter(|client| !self.listed.contains_key(*client)).count().max(1) as u64;
        let each = match self.listed.is_empty() {
            true => Weight::ONE.thousandths() * unlisted,
            false => self.unlisted.thousandths().min(Weight::ONE.thousandths() * unlisted),
        };
        clients.keys().map(|client| self.listed.get(client).map_or(each, |own| own.thousandths() * unlisted)).collect()
    }
}

/// The part of one client at this member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Shape mode: the client's weight in the fair queueing of this member.
    pub weight: Fixed,
    /// The client's grant at this member, in whole records. It binds in reject mode only.
    pub records: u64,
    /// The client's default share at this member.
    pub default_share: Fixed,
    /// The client's default share of the whole capacity.
    pub whole_share: Fixed,
    /// The part of the client's demand that is here, at least a quarter of an even part.
    pub ratio: Ratio,
}

/// The targets of all members, and the parts of this member's clients.
#[derive(Debug, Clone, Default)]
pub struct Targets {
    /// The targets; they add up to the capacity.
    pub targets: BTreeMap<Key, u64>,
    /// The parts of all known clients at this member.
    pub parts: BTreeMap<Arc<str>, Part>,
}

/// Fractions of a record in shape mode's sums: 2⁻¹⁶ records. Sums of them fit 64 bits, products 128.
const FRACTION_BITS: u32 = 16;

/// Computes targets, and keeps its buffers for the next time.
#[derive(Debug, Default)]
pub struct Splitter {
    allocator: Allocator,
    grants: Vec<Grant>,
}

impl Splitter {
    /// Splits the capacity over members by their loads. `own` is among the members.
    pub fn split(
        &mut self, params: &GroupParams, capacity: u64, shares: &Shares, own: &Key, members: &[(&Key, &Loads)],
    ) -> Targets {
        let totals = totals(members);
        if totals.is_empty() {
            let even = whole_parts(capacity, &vec![1; members.len()], 0);
            let targets = members.iter().map(|&(key, _)| key.clone()).zip(even).collect();
            return Targets { targets, parts: BTreeMap::new() };
        }
        let weights = shares.relative(&totals);
        let claim = |(load, &weight): (&Load, &u64)| {
            let wants =
                if load.wants == 0 && load.demand > 0 { Wants::DefaultShare } else { Wants::Records(load.wants) };
            Claim { weight, wants, credit: Credit::default() }
        };
        let claims: Vec<Claim> = totals.values().zip(&weights).map(claim).collect();
        let names: Vec<&Arc<str>> = totals.keys().collect();
        let allocation = AllocationParams { capacity, reservation: shares.reservation, lending: shares.lending };
        self.allocator.allocate(&allocation, &claims, |index| names[index], &mut self.grants);
        match params.mode {
            Mode::Shape => split_by_demand(params, capacity, own, members, &totals, &self.grants),
            Mode::Reject => split_grants(own, members, &totals, &self.grants),
        }
    }
}

/// The loads of all clients, summed over the members.
fn totals(members: &[(&Key, &Loads)]) -> BTreeMap<Arc<str>, Load> {
    let mut totals: BTreeMap<Arc<str>, Load> = BTreeMap::new();
    for (client, load) in members.iter().flat_map(|(_, loads)| *loads) {
        let total = totals.entry(client.clone()).or_default();
        total.demand = total.demand.saturating_add(load.demand);
        total.wants = total.wants.saturating_add(load.wants);
    }
    totals
}

fn demand_of(loads: &Loads, client: &str) -> u64 {
    loads.get(client).map_or(0, |load| load.demand)
}

/// Shape mode: each client's rate, split over the members by its demand there, and the capacity that no client uses,
/// evenly.
fn split_by_demand(
    params: &GroupParams, capacity: u64, own: &Key, members: &[(&Key, &Loads)], totals: &BTreeMap<Arc<str>, Load>,
    grants: &[Grant],
) -> Targets {
    let count = members.len() as u64;
    let standby = if count > 1 {
        u64::try_from(u128::from(capacity) * u128::from(params.standby.millionths()) / 1_000_000).unwrap_or(0) / count
    } else {
        0
    };
    let weight =
        |grant: &Grant| ((grant.exact.max(grant.default_share).to_bits() >> (64 - FRACTION_BITS)) as u64).max(1);
    let demands: Vec<Demand> = totals
        .values()
        .zip(grants)
        .map(|(load, grant)| Demand { demand: u128::from(load.demand) << FRACTION_BITS, weight: weight(grant) })
        .collect();
    let shared = u128::from(capacity - standby * count) << FRACTION_BITS;
    let rates = fill(shared, &demands);
    let spare = (shared - rates.iter().sum::<u128>()) / u128::from(count);

    let mut exact: Vec<u128> = vec![(u128::from(standby) << FRACTION_BITS) + spare; members.len()];
    let mut parts = BTreeMap::new();
    for ((((client, total), &rate), demand), grant) in totals.iter().zip(&rates).zip(&demands).zip(grants) {
        for (&(key, loads), exact) in members.iter().zip(&mut exact) {
            let here = demand_of(loads, client);
            if total.demand > 0 {
                *exact += rate * u128::from(here) / u128::from(total.demand);
            }
            if key == own {
                // The client's weight, split as its demand is. Not its rate: a light client would be held to the rate
                // that it was assumed to need. A quarter of an even part stays for records that arrive here next.
                let weight = u128::from(demand.weight);
                let by_demand = if total.demand > 0 { weight * u128::from(here) / u128::from(total.demand) } else { 0 };
                let weight = by_demand.max(weight / (4 * u128::from(count))).max(1);
                let weight = Fixed::from_bits(weight << (64 - FRACTION_BITS));
                let whole_share = grant.default_share;
                let ratio = ratio(here, total.demand, count);
                // Shown only: the sums over the members are a client's grant and its default share.
                let (part, all) = if total.demand > 0 { (here, total.demand) } else { (1, count) };
                let (part, all) = (u128::from(part), u128::from(all));
                let records = (u128::from(grant.records) * part / all) as u64;
                let default_share = Fixed::from_bits(split(whole_share.to_bits(), part, all));
                parts.insert(client.clone(), Part { weight, records, default_share, whole_share, ratio });
            }
        }
    }
    let whole = round_to(capacity, &exact);
    Targets { targets: members.iter().map(|&(key, _)| key.clone()).zip(whole).collect(), parts }
}

/// Reject mode: each client's whole grant, split over the members by its demand there, evenly if it has none.
fn split_grants(own: &Key, members: &[(&Key, &Loads)], totals: &BTreeMap<Arc<str>, Load>, grants: &[Grant]) -> Targets {
    let mut sums = vec![0_u64; members.len()];
    let mut parts = BTreeMap::new();
    for (index, ((client, total), grant)) in totals.iter().zip(grants).enumerate() {
        let demands: Vec<u64> = match total.demand {
            0 => vec![1; members.len()],
            _ => members.iter().map(|(_, loads)| demand_of(loads, client)).collect(),
        };
        let records_of = whole_parts(grant.records, &demands, index);
        for (place, ((sum, &records), &(key, _))) in sums.iter_mut().zip(&records_of).zip(members).enumerate() {
            *sum += records;
            if key == own {
                let (here, all) = (u128::from(demands[place]), demands.iter().map(|&demand| u128::from(demand)).sum());
                let whole_share = grant.default_share;
                let default_share = Fixed::from_bits(split(whole_share.to_bits(), here, all));
                let ratio = ratio(demand_of(members[place].1, client), total.demand, members.len() as u64);
                let weight = grant.exact;
                parts.insert(client.clone(), Part { weight, records, default_share, whole_share, ratio });
            }
        }
    }
    Targets { targets: members.iter().map(|&(key, _)| key.clone()).zip(sums).collect(), parts }
}

/// The part of a demand that is at one of `members`, at least a quarter of an even part.
fn ratio(here: u64, all: u64, members: u64) -> Ratio {
    let whole = u128::from(Ratio::ONE.millionths());
    let part = u128::from(here) * whole / u128::from(all.max(1));
    let part = part.max(whole / u128::from(4 * members)).clamp(1, whole);
    Ratio::from_millionths(part as u32).unwrap_or(Ratio::ONE)
}

/// The part of `bits` that belongs to `here` of `all`, both at most 2⁵⁰; the lowest bits may be lost.
fn split(bits: u128, here: u128, all: u128) -> u128 {
    ((bits >> 52) * here / all.max(1)) << 52
}

/// The demand of a client, and its weight, both in 2⁻¹⁶ records.
#[derive(Debug, Clone, Copy)]
struct Demand {
    demand: u128,
    weight: u64,
}

/// Shares `total` out by weighted max-min: no client gets more than its demand, and the others get equal amounts for
/// each unit of weight.
fn fill(total: u128, demands: &[Demand]) -> Vec<u128> {
    let mut order: Vec<usize> = (0..demands.len()).collect();
    // By demand / weight. Products fit: demands are capped at 2⁴⁰ records, weights at 2⁴¹.
    let key = |index: usize, other: usize| demands[index].demand * u128::from(demands[other].weight);
    order.sort_by(|&one, &other| key(one, other).cmp(&key(other, one)));
    let mut left = total;
    let mut weights: u128 = demands.iter().map(|demand| u128::from(demand.weight)).sum();
    let mut rates = vec![0; demands.len()];
    for (served, &index) in order.iter().enumerate() {
        let Demand { demand, weight } = demands[index];
        let weight = u128::from(weight);
        if demand * weights <= left * weight {
            (rates[index], left, weights) = (demand, left - demand, weights - weight);
            continue;
        }
        for &index in &order[served..] {
            rates[index] = left * u128::from(demands[index].weight) / weights;
        }
        break;
    }
    rates
}

/// Rounds numbers in 2⁻¹⁶ records to whole ones that add up to `total`, by the largest remainder.
fn round_to(total: u64, exact: &[u128]) -> Vec<u64> {
    let mut whole: Vec<u64> = exact.iter().map(|exact| (exact >> FRACTION_BITS) as u64).collect();
    let left = total.saturating_sub(whole.iter().sum()) as usize;
    let mut order: Vec<usize> = (0..exact.len()).collect();
    let fraction = |index: &usize| exact[*index] & ((1 << FRACTION_BITS) - 1);
    order.sort_by_key(|index| std::cmp::Reverse(fraction(index)));
    for index in order.into_iter().cycle().take(left) {
        whole[index] += 1;
    }
    whole
}

/// Splits whole records in proportion, by the largest remainder; ties go to another member for each `turn`.
fn whole_parts(records: u64, by: &[u64], turn: usize) -> Vec<u64> {
    let total: u128 = by.iter().map(|&part| u128::from(part)).sum();
    let exact = |part: u64| u128::from(records) * u128::from(part);
    let mut whole: Vec<u64> = by.iter().map(|&part| (exact(part) / total) as u64).collect();
    let left = (records - whole.iter().sum::<u64>()) as usize;
    let mut order: Vec<usize> = (0..by.len()).collect();
    order.rotate_left(turn % by.len());
    order.sort_by_key(|&index| std::cmp::Reverse(exact(by[index]) % total));
    for &index in &order[..left] {
        whole[index] += 1;
    }
    whole
}
