//! The hold that each member ought to have.
//!
//! All members compute it from the loads that the members tell. Views may differ for the time of an exchange; that
//! costs fairness only, never the promise.
//!
//! In shape mode, the demand of all clients fills the capacity by weighted max-min, as fair queueing in one instance
//! does, and a member's target is its part of what each client gets: max-min again, over the client's demand at each
//! member. A small standby is kept from that for members without demand. [`SmoothTargets`] keeps random arrivals from
//! moving the targets. In reject mode, each client's grant in whole records is split over the members by the client's
//! demand there.

mod smooth;

use std::collections::HashMap;
use std::{borrow::Cow, cmp::Reverse, sync::Arc};

use super::demand::{AVERAGED_OVER, SMALL_LOADS, differ};
use super::loads::{ClientTable, LoadOf, MemberLoads, clients_of, name_of};
use super::state::Load;
use crate::allocator::{
    AllocationParams, Claim, ClientGroupPart, Credit, FairWeights, Fixed, Grant, GroupClaim, LevelAllocator,
    LevelClaims, MAX_CLAIMS, Part, Wants,
};
use crate::policy::{Lending, Limit, Mode, Policy};
use crate::units::{Ratio, Weight};
pub(crate) use smooth::SmoothTargets;

/// The weights of clients and of their groups, and the rules of lending.
#[derive(Debug, Clone)]
pub struct Shares {
    policy: Policy,
    /// The indices of the listed clients in the policy.
    listed: HashMap<Arc<str>, usize>,
    /// The names of the listed clients, as loads have them.
    names: Vec<Arc<str>>,
    /// The names of all groups, as the loads of their unnamed clients have them: first the unlisted clients'.
    groups: Vec<Arc<str>>,
}

impl Shares {
    pub fn new(policy: &Policy) -> Shares {
        let names = || policy.clients.iter().map(|client| client.name.as_str());
        Shares {
            listed: names().map(Arc::from).zip(0..).collect(),
            names: names().map(|name| Arc::from(name_of(policy, name))).collect(),
            groups: policy.group_names().collect(),
            policy: policy.clone(),
        }
    }

    /// The group of the clients whose load has this name, `None` if they stand alone; their weight; and the most
    /// records that their own limits let through in a cycle, at all members together.
    fn place(&self, name: &str) -> (Option<usize>, Weight, u64) {
        let (policy, cycle) = (&self.policy, self.policy.cycle);
        let client = match clients_of(policy, name) {
            LoadOf::Client(client) => client,
            LoadOf::Unnamed(group) => {
                let weight = policy.effects_on(name).map_or(Weight::ONE, |effects| effects.weight);
                return (policy.place(group, false), weight, u64::MAX);
            }
        };
        let (weight, most) = match self.listed.get(client).map(|&index| &policy.clients[index]) {
            Some(listed) => (listed.weight, Limit::most_in(&listed.limits, cycle)),
            None => policy
                .effects_on(client)
                .map_or((Weight::ONE, u64::MAX), |effects| (effects.weight, Limit::most_in(&effects.limits, cycle))),
        };
        (self.group_of(client), weight, most)
    }

    /// The index of a client's group in the allocation, `None` if it stands alone.
    fn group_of(&self, client: &str) -> Option<usize> {
        self.policy.place(self.policy.group_of(client), self.lists(client))
    }

    /// The name under which the load of a client is told.
    pub(crate) fn named<'c>(&self, client: &'c str) -> Cow<'c, str> {
        name_of(&self.policy, client)
    }

    /// The name under which the load of a client is told if it is too small for a name of its own.
    pub(crate) fn unnamed(&self, client: &str) -> &str {
        self.group_of(client).map_or("", |group| &self.groups[group])
    }

    /// Returns whether the client has a weight of its own. Such a client is named, however small its load is, while the
    /// record has room.
    pub(crate) fn lists(&self, client: &str) -> bool {
        self.listed.contains_key(client)
    }
}

/// Fractions of a record in shape mode's sums: 2⁻¹⁶ records. Sums of them fit 64 bits, products 128.
const FRACTION_BITS: u32 = 16;

/// The capacity ÷ this stays with members without demand, for their first records.
const STANDBY: u64 = 100;

/// A client wants clearly more than its default share if its wants are larger by more than the share ÷ this.
const CLEARLY: u64 = 8;

/// The members' loads, and all else that a split depends on.
pub(crate) struct SplitInput<'a> {
    pub(crate) mode: Mode,
    pub(crate) capacity: u64,
    pub(crate) shares: &'a Shares,
    pub(crate) clients: &'a ClientTable,
    /// The loads of the live members, in the order of their keys.
    pub(crate) members: Vec<&'a MemberLoads>,
    /// The index of this member.
    pub(crate) own: usize,
    /// Records that can't be split go to another member with each turn.
    pub(crate) turn: u64,
}

impl SplitInput<'_> {
    /// The name of a claimant. Numbers behind those of the loads' clients are the listed clients'.
    fn name(&self, number: usize) -> &str {
        match number.checked_sub(self.clients.len()) {
            Some(listed) => &self.shares.names[listed],
            None => self.clients.name(number),
        }
    }
}

/// Computes targets, and keeps what they follow from.
#[derive(Debug, Default)]
pub(crate) struct Splitter {
    allocator: LevelAllocator,
    grants: Vec<Grant>,
    group_grants: Vec<Grant>,
    /// The loads of all clients, summed over the members, by number.
    totals: Vec<Load>,
    /// The default shares of clients at the last split, by number.
    default_shares: Vec<u64>,
    /// The weight of each claim in the fair queueing of the whole group of instances.
    weights: Vec<Fixed>,
    /// The number of each client with a load, and of each listed client without one.
    claimants: Vec<usize>,
    claims: Vec<Claim>,
    /// The most records of each claim's client that its own limits let through in a cycle.
    most: Vec<u64>,
    /// The group of each claim's client, and the claims of the groups.
    claim_groups: Vec<Option<usize>>,
    group_claims: Vec<GroupClaim>,
    /// The parts of all clients with a load, by number; under that of unnamed clients' load, the part of each of them.
    parts: Vec<Option<Part>>,
    /// The part of each group's demand that is here.
    group_ratios: Vec<Ratio>,
    /// Shape mode: the weight of each group in the fair queueing of this member.
    group_weights: Vec<Option<Fixed>>,
    /// The demand of each client, by number, and the members that have it.
    pieces: Vec<Vec<ClientDemand>>,
}

impl Splitter {
    /// The part of a client, or of each of those that are too small to be named, at this member, at the last split.
    pub(crate) fn part(&self, number: usize) -> Option<Part> {
        self.parts.get(number).copied().flatten()
    }

    /// Splits the capacity over members by their loads. The targets are in the order of the members, and add up to the
    /// capacity.
    pub(crate) fn split(&mut self, input: &SplitInput<'_>) -> Vec<u64> {
        self.sum_up(input);
        self.find_group_ratios(input);
        self.parts = vec![None; self.totals.len()];
        self.group_weights = vec![None; input.shares.groups.len()];
        if self.claims.is_empty() || self.claims.len() > MAX_CLAIMS {
            let even = (u128::from(input.capacity) << FRACTION_BITS) / input.members.len() as u128;
            return round_to(input.capacity, &vec![even; input.members.len()], input.turn);
        }
        let allocation = AllocationParams {
            capacity: input.capacity,
            reservation: input.shares.policy.reservation,
            lending: input.shares.policy.lending,
        };
        let claims = LevelClaims {
            clients: &self.claims,
            group_of: |index: usize| self.claim_groups[index],
            name_of: |index: usize| input.name(self.claimants[index]),
            groups: &self.group_claims,
            group_name_of: |group: usize| &*input.shares.groups[group],
        };
        self.allocator.allocate(&allocation, &claims, &mut self.grants, &mut self.group_grants);
        self.default_shares = vec![0; input.clients.len()];
        for (&number, grant) in self.claimants.iter().zip(&self.grants) {
            if let Some(share) = self.default_shares.get_mut(number) {
                *share = grant.default_share.floor();
            }
        }
        self.find_weights(allocation.lending);
        self.find_pieces(input);
        let targets = match input.mode {
            Mode::Shape => self.split_by_demand(input),
            Mode::Reject => self.split_grants(input),
        };
        for name in input.shares.groups.iter().map(|name| &**name).chain(input.shares.groups.is_empty().then_some("")) {
            let Some(number) = input.clients.number(name) else { continue };
            self.parts[number] = self.part_of_unnamed(input, number);
        }
        targets
    }

    /// Finds the weights of the claims, as one instance has them on two levels: a group is queued like one client, and
    /// its clients have its weight together.
    fn find_weights(&mut self, lending: Lending) {
        let mut upper = FairWeights::new(lending);
        let mut inner = vec![FairWeights::new(lending); self.group_claims.len()];
        for (grant, group) in self.grants.iter().zip(&self.claim_groups) {
            group.map_or(&mut upper, |group| &mut inner[group]).count(grant);
        }
        self.group_grants.iter().for_each(|grant| upper.count(grant));
        inner.iter_mut().chain([&mut upper]).for_each(FairWeights::settle);
        let weight =
            |(grant, group): (&Grant, &Option<usize>)| group.map_or(&upper, |group| &inner[group]).weight(grant);
        self.weights = self.grants.iter().zip(&self.claim_groups).map(weight).collect();
        let mut sums = vec![0_u128; inner.len()];
        let in_groups = || self.claim_groups.iter().enumerate().filter_map(|(claim, group)| Some((claim, (*group)?)));
        in_groups().for_each(|(claim, group)| sums[group] += u128::from(fractions(self.weights[claim])));
        for (claim, group) in in_groups() {
            let [weight, of_group] = [self.weights[claim], upper.weight(&self.group_grants[group])].map(fractions);
            self.weights[claim] = from_fractions(u128::from(weight) * u128::from(of_group) / sums[group].max(1));
        }
    }

    /// Shares `total` out over the groups and the clients that stand alone, and each group's part over its clients.
    /// Records that a group's limit holds back use no capacity.
    fn fill_levels(&self, policy: &Policy, total: u128, demands: &[Demand]) -> Vec<u128> {
        let mut upper = vec![Demand::default(); self.group_claims.len()];
        let mut inside = vec![Vec::new(); self.group_claims.len()];
        for (&demand, group) in demands.iter().zip(&self.claim_groups) {
            let Some(group) = *group else {
                upper.push(demand);
                continue;
            };
            let all = &mut upper[group];
            (all.demand, all.weight) = ((all.demand + demand.demand).min(total), all.weight + demand.weight);
            inside[group].push(demand);
        }
        for (all, group) in upper.iter_mut().skip(1).zip(&policy.groups) {
            all.demand = all.demand.min(u128::from(group.most_in(policy.cycle)) << FRACTION_BITS);
        }
        let rates = fill(total, &upper);
        let (of_groups, alone) = rates.split_at(inside.len());
        let mut inside: Vec<_> =
            inside.iter().zip(of_groups).map(|(demands, &rate)| fill(rate, demands).into_iter()).collect();
        let mut alone = alone.iter().copied();
        let mut next = |group: &Option<usize>| group.map_or_else(|| alone.next(), |group| inside[group].next());
        self.claim_groups.iter().map(|group| next(group).unwrap_or(0)).collect()
    }

    /// Finds the part of each group's demand that is here.
    fn find_group_ratios(&mut self, input: &SplitInput<'_>) {
        let mut demands = vec![(0_u64, 0_u64); self.group_claims.len()];
        for (&number, group) in self.claimants.iter().zip(&self.claim_groups) {
            if let Some(group) = *group {
                let (here, total) = &mut demands[group];
                *here = here.saturating_add(input.members[input.own].get(number).demand);
                *total = total.saturating_add(self.totals[number].demand);
            }
        }
        let members = input.members.len() as u64;
        self.group_ratios = demands.into_iter().map(|(here, total)| ratio(here, total, members)).collect();
    }

    /// The part of a group's demand that is here, and the group's weight here, by its name with `/` behind it.
    pub(crate) fn group_part(&self, shares: &Shares, name: &str) -> Option<ClientGroupPart> {
        let index = match name.strip_suffix('/') {
            Some(name) => shares.policy.group_named(name)? + 1,
            None => 0,
        };
        Some(ClientGroupPart { ratio: *self.group_ratios.get(index)?, weight: *self.group_weights.get(index)? })
    }

    /// Sums the loads up, and claims the capacity for them.
    fn sum_up(&mut self, input: &SplitInput<'_>) {
        let shares = input.shares;
        self.totals = vec![Load::default(); input.clients.len() + shares.names.len()];
        for (number, load) in input.members.iter().flat_map(|loads| loads.iter()) {
            self.totals[number].add(load);
        }
        let with_load = self.totals.iter().enumerate().filter(|(_, total)| **total != Load::default());
        self.claimants = with_load.map(|(number, _)| number).collect();
        if !self.claimants.is_empty() {
            // As within an instance: listed clients keep their shares and reservations while they send nothing.
            let has_load =
                |name: &str| input.clients.number(name).is_some_and(|number| self.totals[number] != Load::default());
            let listed = (input.clients.len()..).zip(&shares.names).filter(|(_, name)| !has_load(name));
            self.claimants.extend(listed.map(|(number, _)| number));
        }
        self.claims.clear();
        self.claim_groups.clear();
        self.most.clear();
        let mut clients_of_groups = vec![0; shares.groups.len()];
        let has_jumped = |total: Load| differ(total.demand, total.wants, shares.policy.cycle, AVERAGED_OVER);
        for &number in &self.claimants {
            let (name, total) = (input.name(number), self.totals[number]);
            let (group, weight, most) = shares.place(name);
            let clients = match clients_of(&shares.policy, name) {
                LoadOf::Unnamed(_) => unnamed_clients(input.capacity, total),
                LoadOf::Client(_) => 1,
            };
            let weight = weight.thousandths() * clients;
            if let Some(group) = group {
                clients_of_groups[group] += clients;
            }
            let is_new = total.wants == 0 && total.demand > 0;
            let share = self.default_shares.get(number).copied().unwrap_or(0);
            let least = match input.mode {
                // As within an instance: a client that clearly wants more than in the last cycle claims its share at
                // once.
                Mode::Shape if total.demand > total.wants + share / CLEARLY && has_jumped(total) => share,
                Mode::Shape => 0,
                // The wants of the last cycle stay with the former owner of a partition. By those alone, what clients
                // of a killed instance had borrowed was idle for a cycle, and given to none.
                Mode::Reject if is_new => total.demand.max(share),
                Mode::Reject => total.demand,
            };
            let claims_share = is_new && (input.mode == Mode::Shape || share == 0);
            let wants = if claims_share { Wants::DefaultShare } else { Wants::Records(total.wants.max(least)) };
            self.claims.push(Claim { weight, wants, credit: Credit::default() });
            self.claim_groups.push(group);
            self.most.push(most);
        }
        let weight = |(place, clients)| shares.policy.weight_of_group(place, clients);
        let claim = |group| GroupClaim { weight: weight(group), credit: Credit::default() };
        self.group_claims = clients_of_groups.into_iter().enumerate().map(claim).collect();
    }

    /// Shape mode: each client's rate, split over the members by max-min of its demand there, and the capacity that no
    /// client uses, evenly.
    fn split_by_demand(&mut self, input: &SplitInput<'_>) -> Vec<u64> {
        let SplitInput { capacity, members, .. } = input;
        let count = members.len() as u64;
        let standby = match count {
            1 => 0,
            _ => capacity / STANDBY / count,
        };
        // Each member knows what a client's own limits hold back of its records. They hold over all members together.
        let demand = |((&number, &most), &weight): ((&usize, &u64), &Fixed)| Demand {
            demand: u128::from(self.totals[number].demand.min(most)) << FRACTION_BITS,
            weight: fractions(weight).max(1),
        };
        let demands: Vec<Demand> = self.claimants.iter().zip(&self.most).zip(&self.weights).map(demand).collect();
        let shared = u128::from(capacity - standby * count) << FRACTION_BITS;
        let rates = self.fill_levels(&input.shares.policy, shared, &demands);
        let spare = (shared - rates.iter().sum::<u128>()) / u128::from(count);

        let mut exact = vec![(u128::from(standby) << FRACTION_BITS) + spare; members.len()];
        for (index, (&number, (&rate, demand))) in self.claimants.iter().zip(rates.iter().zip(&demands)).enumerate() {
            let grant = &self.grants[index];
            let (here, total) = (members[input.own].get(number).demand, self.totals[number].demand);
            // Small demands of the client are met first: a backlog at one member must not take from the rate that its
            // records need at another.
            let pieces = &self.pieces[number];
            let mut rate_here = 0;
            for (piece, rate) in pieces.iter().zip(fill_pieces(rate, pieces)) {
                exact[piece.member] += rate;
                rate_here += if piece.member == input.own { rate } else { 0 };
            }
            // The client's weight, split as its rate is. Not the rate itself: a light client would be held to the rate
            // that it was assumed to need. A quarter of an even part stays for records that arrive here next.
            let weight = u128::from(demand.weight);
            let by_rate = (weight * rate_here).checked_div(rate).unwrap_or(0);
            let weight = by_rate.max(weight / (4 * u128::from(count))).max(1);
            // Fair queueing goes by the larger of weight and default share. Split by demand, the share exceeds the
            // weight wherever the client has a backlog. A backlog that came by chance is sent soon that way. But a
            // client that wants clearly more than its share would get more than its weight.
            let share = grant.default_share.floor();
            let wants_more = self.totals[number].wants > share + share / CLEARLY;
            let (part, all) = match total {
                0 => (1, u128::from(count)),
                _ if wants_more && rate > 0 => (rate_here, rate),
                _ => (u128::from(here), u128::from(total)),
            };
            let (weight, default_share) = (from_fractions(weight), split(grant.default_share.to_bits(), part, all));
            let default_share = Fixed::from_bits(default_share);
            let default_share = if wants_more { default_share.min(weight) } else { default_share };
            if let Some(group) = self.claim_groups[index] {
                let of_group = self.group_weights[group].get_or_insert(Fixed::ZERO);
                *of_group = *of_group + weight.max(default_share);
            }
            self.parts[number] = Some(Part {
                weight,
                // The sums over the members are a client's grant and its default share.
                records: (u128::from(grant.records) * part / all) as u64,
                whole_records: grant.records,
                default_share,
                whole_share: grant.default_share,
                least_share: 0,
                ratio: ratio(here, total, count),
            });
        }
        round_to(*capacity, &exact, input.turn)
    }

    /// Finds the members that have demand of each client.
    fn find_pieces(&mut self, input: &SplitInput<'_>) {
        self.pieces.iter_mut().for_each(Vec::clear);
        self.pieces.resize_with(self.totals.len(), Vec::new);
        for (member, loads) in input.members.iter().enumerate() {
            for (number, load) in loads.iter().filter(|(_, load)| load.demand > 0) {
                self.pieces[number].push(ClientDemand { member, demand: load.demand });
            }
        }
    }

    /// Reject mode: each client's whole grant, split over the members by its demand there, evenly if it has none.
    fn split_grants(&mut self, input: &SplitInput<'_>) -> Vec<u64> {
        let SplitInput { members, own, turn, .. } = input;
        let mut sums = vec![0_u64; members.len()];
        for (&number, grant) in self.claimants.iter().zip(&self.grants) {
            let pieces = &mut self.pieces[number];
            if pieces.is_empty() {
                pieces.extend((0..members.len()).map(|member| ClientDemand { member, demand: 1 }));
            }
            // By the name, which all members number alike.
            let turn = turn.wrapping_add(u64::from(crc32fast::hash(input.name(number).as_bytes())));
            let all: u128 = pieces.iter().map(|piece| u128::from(piece.demand)).sum();
            let whole = u128::from(grant.records) << FRACTION_BITS;
            // Where nearly all demand can be met, small demands are met first: one that is taken for too large takes
            // from no other member. Where it can't, every member uses all that it gets.
            let is_met = all * 4 <= u128::from(grant.records) * 5;
            let mut exact = if is_met { fill_pieces(whole, pieces) } else { vec![0; pieces.len()] };
            let left = whole - exact.iter().sum::<u128>();
            let more = |piece: &ClientDemand| left * u128::from(piece.demand) / all.max(1);
            exact.iter_mut().zip(pieces.iter()).for_each(|(exact, piece)| *exact += more(piece));
            let records_of = round_to(grant.records, &exact, turn);
            let mut records = 0;
            for (piece, &part) in pieces.iter().zip(&records_of) {
                sums[piece.member] += part;
                records += if piece.member == *own { part } else { 0 };
            }
            let here = pieces.iter().find(|piece| piece.member == *own).map_or(0, |piece| piece.demand);
            let (total, share) = (self.totals[number], grant.default_share.floor());
            self.parts[number] = Some(Part {
                weight: grant.exact,
                records,
                whole_records: grant.records,
                default_share: Fixed::from_bits(split(grant.default_share.to_bits(), u128::from(here), all)),
                whole_share: grant.default_share,
                // Half of an even part: with all of it, clients with even demand waited for up to 2.5 s of 10 s where
                // a flood came to one member only.
                least_share: if total.demand <= share { share / (2 * members.len() as u64) } else { 0 },
                ratio: ratio(members[*own].get(number).demand, total.demand, members.len() as u64),
            });
        }
        sums
    }

    /// The part of each client that is too small to be named: an even part of what they get together. In reject mode a
    /// grant of as much as the largest of them can want, as far as they get what they want.
    fn part_of_unnamed(&self, input: &SplitInput<'_>, number: usize) -> Option<Part> {
        let index = self.claimants.binary_search(&number).ok()?;
        let (grant, total) = (self.grants[index], self.totals[number]);
        let count = u128::from(unnamed_clients(input.capacity, total));
        let each = |all: Fixed| Fixed::from_bits(all.to_bits() / count);
        let wanted = u128::from(total.demand.max(total.wants).max(grant.records).max(1));
        let most = u128::from(input.capacity / SMALL_LOADS) * u128::from(grant.records) / wanted;
        let default_share = each(grant.default_share);
        Some(Part {
            weight: each(self.weights[index].max(grant.default_share)),
            records: most as u64,
            whole_records: most as u64,
            default_share,
            whole_share: default_share,
            least_share: 0,
            ratio: Ratio::ONE,
        })
    }
}

/// The demand of one client at one member.
#[derive(Debug, Clone, Copy)]
struct ClientDemand {
    member: usize,
    demand: u64,
}

/// The least number of clients that can have this load together if none of them has to be named.
fn unnamed_clients(capacity: u64, total: Load) -> u64 {
    let each = (capacity / SMALL_LOADS).max(1);
    total.demand.max(total.wants).div_ceil(each).clamp(1, SMALL_LOADS)
}

/// The part of a demand that is at one of `members`; an even part of no demand. In reject mode, records that wait are
/// none. A member without demand has a quarter of an even part for its first records. It had that beside any demand
/// once: several members with little demand exceeded a limit by a quarter of it together.
fn ratio(here: u64, all: u64, members: u64) -> Ratio {
    let whole = u128::from(Ratio::ONE.millionths());
    let part = match (here, all) {
        (_, 0) => whole / u128::from(members),
        (0, _) => whole / u128::from(4 * members),
        _ => u128::from(here) * whole / u128::from(all),
    };
    Ratio::from_millionths(part.clamp(1, whole) as u32).unwrap_or(Ratio::ONE)
}

/// The part of `bits` that belongs to `here` of `all`, both at most 2⁶⁰; the lowest bits may be lost.
fn split(bits: u128, here: u128, all: u128) -> u128 {
    ((bits >> 52) * here / all.max(1)) << 52
}

/// A number of records in 2⁻¹⁶ of them.
fn fractions(records: Fixed) -> u64 {
    (records.to_bits() >> (64 - FRACTION_BITS)) as u64
}

fn from_fractions(fractions: u128) -> Fixed {
    Fixed::from_bits(fractions << (64 - FRACTION_BITS))
}

/// The demand of a client, and its weight, both in 2⁻¹⁶ records.
#[derive(Debug, Clone, Copy, Default)]
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

/// Shares `total` out over the members with a client's demand, in 2⁻¹⁶ records.
fn fill_pieces(total: u128, pieces: &[ClientDemand]) -> Vec<u128> {
    let demand = |piece: &ClientDemand| Demand { demand: u128::from(piece.demand) << FRACTION_BITS, weight: 1 };
    fill(total, &pieces.iter().map(demand).collect::<Vec<_>>())
}

/// Rounds numbers in 2⁻¹⁶ records to whole ones that add up to `total`, by the largest remainder; ties go to another
/// member with each turn.
fn round_to(total: u64, exact: &[u128], turn: u64) -> Vec<u64> {
    let mut whole: Vec<u64> = exact.iter().map(|exact| (exact >> FRACTION_BITS) as u64).collect();
    let left = total.saturating_sub(whole.iter().sum()) as usize;
    // Those with the largest remainders first.
    let mut order: Vec<usize> = (0..exact.len()).collect();
    order.rotate_left((turn % exact.len() as u64) as usize);
    order.sort_by_key(|&index| Reverse(exact[index] & ((1 << FRACTION_BITS) - 1)));
    for index in order.into_iter().cycle().take(left) {
        whole[index] += 1;
    }
    whole
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::pattern::ClientPattern;
    use crate::policy::{ClientPolicy, GroupPolicy};
    use crate::rules::{Effects, Origin, Rule, RuleTarget, Rules};

    /// Splits the capacity for one member with these loads, of which each client's wants are its demand, too.
    fn split_of(policy: &Policy, wants: &[(&str, u64)]) -> (ClientTable, Splitter) {
        let load = |&(name, wants): &(&str, u64)| (Arc::from(name), Load { demand: wants, wants });
        let (mut clients, mut own, mut splitter) =
            (ClientTable::default(), MemberLoads::default(), Splitter::default());
        clients.update(&mut own, &wants.iter().map(load).collect::<Vec<_>>());
        splitter.split(&SplitInput {
            mode: policy.mode,
            capacity: policy.capacity,
            shares: &Shares::new(policy),
            clients: &clients,
            members: vec![&own],
            own: 0,
            turn: 0,
        });
        (clients, splitter)
    }

    /// The group split its capacity as if unlisted clients had the weights that rules give them also beside listed
    /// clients, and a single instance counted them as one each: a listed client had half of its share in a group.
    #[test]
    fn unlisted_clients_count_as_one_each_beside_listed_ones() {
        let effects = Effects { weight: Weight::from_thousandths(5_000), ..Effects::default() };
        let (patterns, in_groups) = (vec![ClientPattern::new("free-*")], None);
        let heavy = Rule {
            name: "free".into(),
            origin: Origin::File,
            target: RuleTarget::Clients { patterns, in_groups },
            priority: 0,
            from_ms: None,
            until_ms: None,
            disabled: false,
            note: String::new(),
            effects,
        };
        let listed = ClientPolicy { name: "listed".into(), weight: Weight::ONE, limits: Vec::new() };
        let unlisted_weight = Weight::from_thousandths(5_000).expect("five is a weight");
        let rules = Arc::new(Rules::new(vec![heavy]));
        let policy = Policy::new(1_200, Duration::from_secs(1));
        let policy = Policy { mode: Mode::Reject, clients: vec![listed], unlisted_weight, rules, ..policy }.at(0);
        let (clients, splitter) = split_of(&policy, &["listed", "free-1", "other"].map(|name| (name, 2_000)));
        let share = |name: &str| {
            let number = clients.number(name).expect("it has a load");
            splitter.part(number).expect("it has a part").whole_share.floor()
        };
        // Two of three are those of the unlisted clients, by their weights 5 and 1.
        assert_eq!(["listed", "free-1", "other"].map(share), [400, 666, 133]);
    }

    /// Under `max_min`, clients that borrow little weigh their shares: the weights inside a group may exceed its share.
    #[test]
    fn the_clients_of_a_group_weigh_as_much_as_the_group() {
        let z = ClientPolicy { name: "z".into(), weight: Weight::ONE, limits: Vec::new() };
        let clients = vec![ClientPattern::new("g-*")];
        let g = GroupPolicy { name: "g".into(), weight: Weight::ONE, limits: Vec::new(), hold: false, clients };
        for lending in [Lending::Proportional, Lending::MaxMin] {
            let (clients, groups) = (vec![z.clone()], vec![g.clone()]);
            let policy = Policy { lending, clients, groups, ..Policy::new(1_200, Duration::from_secs(1)) };
            let wants = [("z", 2_000), ("g-1", 2_000), ("g-2", 130), ("g-3", 130), ("g-4", 130), ("g-5", 1)];
            let (_, splitter) = split_of(&policy, &wants);
            let of_group = splitter.weights.iter().zip(&splitter.claim_groups).filter(|(_, group)| group.is_some());
            let sum: f64 = of_group.map(|(weight, _)| weight.as_f64()).sum();
            assert!((sum - 600.0).abs() < 0.01, "{lending:?}: {sum}");
        }
    }

    /// A single instance in reject mode had a quarter of a client's own limit while only delayed records were left,
    /// which are no demand: they expired.
    #[test]
    fn a_limit_without_demand_is_split_evenly() {
        let part = |here, all, members| ratio(here, all, members).millionths();
        assert_eq!([part(0, 0, 1), part(5, 5, 1), part(0, 0, 4)], [1_000_000, 1_000_000, 250_000]);
        assert_eq!([part(0, 8, 2), part(6, 8, 2), part(1, 80, 2)], [125_000, 750_000, 12_500]);
    }
}
