#include "transport/testing/transport_contract.h"

#include "transport/testing/contract_parts.h"

namespace forebay::testing {

bool LinkTransportContract() {
  return LinkContractConnect() && LinkContractMessages() && LinkContractCallbacks() &&
         LinkContractFaults() && LinkContractLimits() && LinkContractSleep();
}

}  // namespace forebay::testing
