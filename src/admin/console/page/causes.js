// The cause of each reason, as core/src/reason.rs states it.

export const CAUSES = {
  anonymous: "It names no client.",
  unknown_client: "The source topic does not allow its client.",
  too_many_clients: "Too many clients are active.",
  client_limit: "Its client has used up its own limit.",
  held: "The operators hold its client.",
  over_allocation: "Its client has sent all that it is granted.",
  capacity_in_use: "Its client has sent its share, and other clients use the rest of the capacity.",
  queue_full: "Too many records were delayed.",
  expired: "It was delayed for too long.",
  undeliverable: "The service's topic can't take it.",
};
