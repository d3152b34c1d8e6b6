#pragma once

#include "tests/sim/sim_world.h"

// What must be true of every node at every moment, and of a node that nobody uses any more.
namespace forebay::testing {

// Slots add up; pins and bytes in flight are those of sends and leases; what is lent has not
// changed.
void AuditAccounts(SimWorld& world);
// Each frame in an index is exactly what somebody put there, and no slot is two generations at
// once.
void AuditPages(SimWorld& world);
// Nothing is held for anybody: for when all clients are gone and every lease and session is over.
void AuditIdle(SimWorld& world);

// Flips one bit of a frame at rest, if there is one that no send reads from.
void RotOneFrame(SimWorld& world);

}  // namespace forebay::testing
