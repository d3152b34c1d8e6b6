// TLS: the contract under it, and who is refused.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "transport/tcp/testing/raw_socket.h"
#include "transport/tcp/testing/tcp_world.h"
#include "transport/tcp/testing/test_certificates.h"

namespace forebay {
namespace {

using ::testing::AnyOf;
using testing::HasCode;
using testing::HasStatus;
using ::testing::HasSubstr;
using testing::RawSocket;
using testing::TcpWorld;
using testing::TestCertificateAuthority;
using testing::TransportSide;

TcpTransportOptions TlsOf(TestCertificateAuthority& issuer, const TestCertificateAuthority& trusted,
                          const std::string& name) {
  const auto files = issuer.Issue(name);
  TcpTransportOptions options;
  options.use_tls = true;
  options.tls.certificate_file = files.certificate_file;
  options.tls.key_file = files.key_file;
  options.tls.ca_file = trusted.ca_file();
  return options;
}

testing::TransportContractParam Param(std::string name, int streams) {
  return {std::move(name), [streams] {
            // Lives until the process ends: the options name its files.
            static TestCertificateAuthority authority("forebay test CA");
            static const TcpTransportOptions base = TlsOf(authority, authority, "forebay.test");
            TcpTransportOptions options = base;
            options.streams_per_peer = streams;
            return std::make_unique<TcpWorld>(options);
          }};
}

class TcpTlsTest : public ::testing::Test {
 protected:
  // Why the client's endpoint ended, where the two were never connected.
  absl::Status Outcome(const TcpTransportOptions& server_options,
                       const TcpTransportOptions& client_options) {
    world_.set_options(server_options);
    TransportSide server(world_, "server");
    const std::string address = server.Listen();
    world_.set_options(client_options);
    TransportSide client(world_, "client");
    const EndpointId end = client.Connect(address, 3 * kSecond);
    EXPECT_TRUE(RunUntil(world_, {&server, &client}, "OnConnected or OnClosed", [&] {
      return client.handler().closed(end) ||
             (client.handler().connected(end) && server.handler().connected_count() == 1);
    }));
    if (!client.handler().closed(end)) return absl::OkStatus();
    EXPECT_EQ(server.handler().connected_count(), 0u);
    return client.handler().endpoint(end)->why;
  }

  TcpWorld world_;
  TestCertificateAuthority ours_{"our CA"};
  TestCertificateAuthority theirs_{"their CA"};
};

TEST_F(TcpTlsTest, TheSameAuthorityIsTrusted) {
  EXPECT_THAT(Outcome(TlsOf(ours_, ours_, "server"), TlsOf(ours_, ours_, "client")),
              testing::IsOk());
}

TEST_F(TcpTlsTest, AServerOfAnotherAuthorityIsRefused) {
  EXPECT_THAT(Outcome(TlsOf(theirs_, ours_, "server"), TlsOf(ours_, ours_, "client")),
              HasStatus(absl::StatusCode::kUnauthenticated, HasSubstr("the peer's certificate")));
}

TEST_F(TcpTlsTest, AClientOfAnotherAuthorityIsRefusedAndHearsWhy) {
  EXPECT_THAT(Outcome(TlsOf(ours_, ours_, "server"), TlsOf(theirs_, ours_, "client")),
              HasStatus(absl::StatusCode::kUnauthenticated, HasSubstr("the peer refused TLS")));
}

TEST_F(TcpTlsTest, AClientWithoutACertificateIsRefused) {
  TcpTransportOptions client;
  client.use_tls = true;
  client.tls.ca_file = ours_.ca_file();
  EXPECT_THAT(Outcome(TlsOf(ours_, ours_, "server"), client),
              HasStatus(absl::StatusCode::kUnauthenticated, HasSubstr("the peer refused TLS")));
}

TEST_F(TcpTlsTest, VerificationCanBeLeftToOneSide) {
  TcpTransportOptions server = TlsOf(ours_, ours_, "server");
  server.tls.verify_peer = false;
  TcpTransportOptions client;
  client.use_tls = true;
  client.tls.ca_file = ours_.ca_file();
  EXPECT_THAT(Outcome(server, client), testing::IsOk());
}

TEST_F(TcpTlsTest, AServerOfAnotherNameIsRefused) {
  TcpTransportOptions client = TlsOf(ours_, ours_, "client");
  client.tls.server_name = "pool7";
  EXPECT_THAT(Outcome(TlsOf(ours_, ours_, "pool8"), client),
              HasStatus(absl::StatusCode::kUnauthenticated, HasSubstr("ostname mismatch")));
  EXPECT_THAT(Outcome(TlsOf(ours_, ours_, "pool7"), client), testing::IsOk());
}

TEST_F(TcpTlsTest, PlainAndTlsDoNotMix) {
  EXPECT_THAT(Outcome(TlsOf(ours_, ours_, "server"), TcpTransportOptions()),
              HasCode(absl::StatusCode::kUnavailable));
  EXPECT_FALSE(Outcome(TcpTransportOptions(), TlsOf(ours_, ours_, "client")).ok());
}

TEST_F(TcpTlsTest, GarbageOnATlsPortIsCountedAndHarmsNobody) {
  world_.set_options(TlsOf(ours_, ours_, "server"));
  TransportSide server(world_, "server");
  const std::string address = server.Listen();
  SeededRandom random(7);
  for (int i = 0; i < 200; ++i) {
    RawSocket stranger = RawSocket::ConnectTo(address);
    std::string bytes(1 + random.Below(200), '\0');
    for (char& byte : bytes) byte = static_cast<char>(random.Next());
    stranger.Write(bytes);
    for (int j = 0; j < 4; ++j) server.Poll();
  }
  EXPECT_GT(CountsOf(server).base.protocol_errors, 100u);
  TransportSide client(world_, "client");
  const EndpointId end = client.Connect(address);
  EXPECT_TRUE(RunUntil(world_, {&server, &client}, "OnConnected after garbage",
                       [&] { return client.handler().connected(end); }));
}

TEST_F(TcpTlsTest, UnsoundFilesAreNamed) {
  const SystemClock clock;
  testing::RecordingHandler handler("handler");
  const TcpTransportOptions sound = TlsOf(ours_, ours_, "server");
  const auto create = [&](const TcpTransportOptions& options) {
    return TcpTransport::Create(clock, handler, options).status();
  };
  TcpTransportOptions options = sound;
  options.tls.certificate_file = "/nonexistent/cert.pem";
  EXPECT_THAT(create(options),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("/nonexistent/cert.pem")));
  options = sound;
  options.tls.ca_file = sound.tls.key_file;
  EXPECT_THAT(create(options),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr(sound.tls.key_file)));
  options = sound;
  options.tls.key_file = theirs_.Issue("other").key_file;
  EXPECT_THAT(create(options),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr(options.tls.key_file)));
  options = sound;
  options.tls.key_file.clear();
  EXPECT_THAT(create(options), HasCode(absl::StatusCode::kInvalidArgument));
  options = sound;
  options.tls.ca_file.clear();
  EXPECT_THAT(create(options),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("without a CA")));
}

TEST_F(TcpTlsTest, ListeningNeedsACertificate) {
  TcpTransportOptions options;
  options.use_tls = true;
  options.tls.ca_file = ours_.ca_file();
  world_.set_options(options);
  TransportSide side(world_, "side");
  EXPECT_THAT(side.transport().Listen("tcp:127.0.0.1:0"),
              HasStatus(absl::StatusCode::kFailedPrecondition, HasSubstr("certificate")));
}

}  // namespace
}  // namespace forebay

FB_INSTANTIATE_TRANSPORT_CONTRACT(TcpTls, ::testing::Values(forebay::Param("tls", 1),
                                                            forebay::Param("tlsstreams2", 2)));
