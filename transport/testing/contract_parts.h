#pragma once

// The files of the contract suite, for LinkTransportContract() alone.
namespace forebay::testing {

bool LinkContractConnect();
bool LinkContractMessages();
bool LinkContractCallbacks();
bool LinkContractFaults();
bool LinkContractLimits();
bool LinkContractSleep();

}  // namespace forebay::testing
