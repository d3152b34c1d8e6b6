#include "transport/testing/transport_contract.h"

namespace forebay::testing {

bool LinkTransportContract() { return true; }

}  // namespace forebay::testing
