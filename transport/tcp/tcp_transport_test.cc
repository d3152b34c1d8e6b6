// The transport contract over TCP: plain and on several streams; tcp_tls_test.cc has it under TLS.

#include "transport/tcp/tcp_transport.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "transport/tcp/testing/tcp_world.h"
#include "transport/testing/transport_contract.h"

namespace forebay {
namespace {

testing::TransportContractParam Param(std::string name, TcpTransportOptions options) {
  return {std::move(name), [options] { return std::make_unique<testing::TcpWorld>(options); }};
}

TcpTransportOptions WithStreams(int streams) {
  TcpTransportOptions options;
  options.streams_per_peer = streams;
  return options;
}

// Everything is cut as small as it can be: the edges of chunks, turns and buffers are everywhere.
TcpTransportOptions Tiny() {
  TcpTransportOptions options;
  options.streams_per_peer = 3;
  options.chunk_bytes = 4096;
  options.poll_bytes_max = 1;
  options.send_buffer_bytes = 4096;
  options.receive_buffer_bytes = 4096;
  return options;
}

}  // namespace
}  // namespace forebay

FB_INSTANTIATE_TRANSPORT_CONTRACT(Tcp, ::testing::Values(Param("plain", TcpTransportOptions()),
                                                         Param("streams2", WithStreams(2)),
                                                         Param("tiny", Tiny())));
