//! The grants that a policy would give, without a scheduler.

use std::{collections::HashMap, sync::Arc};

use crate::allocator::{AllocationParams, Claim, Credit, GroupClaim, LevelAllocator, LevelClaims, Wants};
use crate::policy::Policy;
use crate::units::Weight;

/// The grants of clients with these wants, in their order, as the allocation of a cycle with this capacity and without
/// credits gives them; none without a capacity. A client that a rule holds gets nothing, although the allocation leaves
/// it a part of what no client wants.
pub fn grants(policy: &Policy, capacity: u64, wants: &[(Arc<str>, u64)]) -> Vec<u64> {
    if capacity == 0 {
        return vec![0; wants.len()];
    }
    let listed: HashMap<&str, Weight> =
        policy.clients.iter().map(|client| (client.name.as_str(), client.weight)).collect();
    let names: Vec<Arc<str>> = policy.group_names().collect();
    let mut clients_of_groups = vec![0; names.len()];
    let (mut places, mut claims, mut held) = (Vec::new(), Vec::new(), Vec::new());
    for (name, wants) in wants {
        let (group, listed) = (policy.group_of(name), listed.get(&**name).copied());
        let effects = policy.effects_on(name);
        let is_held = effects.as_ref().is_some_and(|effects| effects.hold)
            || group.is_some_and(|group| policy.groups[group].hold);
        let weight = effects.map(|effects| effects.weight).or(listed).unwrap_or(Weight::ONE).thousandths();
        let place = policy.place(group, listed.is_some());
        if let Some(place) = place {
            clients_of_groups[place] += 1;
        }
        places.push(place);
        held.push(is_held);
        let wants = Wants::Records(if is_held { 0 } else { *wants });
        claims.push(Claim { weight, wants, credit: Credit::default() });
    }
    let claim = |(place, &clients): (usize, &u64)| GroupClaim {
        weight: policy.weight_of_group(place, clients),
        credit: Credit::default(),
    };
    let groups: Vec<GroupClaim> = clients_of_groups.iter().enumerate().map(claim).collect();
    let params = AllocationParams { capacity, reservation: policy.reservation, lending: policy.lending };
    let levels = LevelClaims {
        clients: &claims,
        group_of: |client: usize| places[client],
        name_of: |client: usize| &*wants[client].0,
        groups: &groups,
        group_name_of: |group: usize| &*names[group],
    };
    let (mut grants, mut of_groups) = (Vec::new(), Vec::new());
    LevelAllocator::default().allocate(&params, &levels, &mut grants, &mut of_groups);
    grants.into_iter().zip(held).map(|(grant, is_held)| if is_held { 0 } else { grant.records }).collect()
}
