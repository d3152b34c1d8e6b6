// Negative controls: each rule is fed what it must refuse, and its neighbour that it must not.

#include "tests/tidy/rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/tidy/catalogue.h"
#include "tests/tidy/source_tree.h"

namespace forebay::tidy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(SourceTreeTest, BlanksCommentsAndLiterals) {
  EXPECT_EQ(WithoutCommentsAndText("a /* b\nc */ d // e\nf"), "a     \n     d     \nf");
  EXPECT_EQ(WithoutCommentsAndText("x(\"a\\\"{//\", '{', 1'000);"), "x(\"      \", ' ', 1'000);");
  EXPECT_EQ(WithoutCommentsAndText("R\"(a\")\" b"), "R\"    \" b");
  EXPECT_EQ(WithoutComments("\"// no\" // yes"), "\"// no\"       ");
}

TEST(LayeringRuleTest, RefusesArrowsThatAreNotDrawn) {
  EXPECT_THAT(LayeringFaults({"codec/a.cc", "\n#include \"transport/transport.h\"\n"}),
              ElementsAre("codec/a.cc:2: codec must not include transport"));
  EXPECT_THAT(LayeringFaults({"base/a.h", "#include \"proto/wire.h\"\n"}).size(), 1u);
  EXPECT_THAT(LayeringFaults({"client/a_test.cc", "#include \"server/pool_node.h\"\n"}).size(), 1u);
  EXPECT_THAT(LayeringFaults({"server/a.cc", "# include <client/pool_client.h>\n"}).size(), 1u);
  EXPECT_THAT(LayeringFaults({"base/a_test.cc", "#include \"tests/support/x.h\"\n"}).size(), 1u);
  EXPECT_THAT(LayeringFaults({"examples/a.cc", "#include \"server/daemon.h\"\n"}).size(), 1u);
  EXPECT_THAT(LayeringFaults({"base/a.cc", "#include \"base/testing/manual_clock.h\"\n"}),
              ElementsAre(HasSubstr("the product must not include")));
}

TEST(LayeringRuleTest, AllowsThoseThatAre) {
  EXPECT_THAT(LayeringFaults({"server/a.cc",
                              "#include \"tiers/page_index.h\"\n#include \"absl/x/y.h\"\n"
                              "// #include \"client/pool_client.h\"\n#include <vector>\n"}),
              IsEmpty());
  EXPECT_THAT(LayeringFaults({"tests/e2e/a.cc", "#include \"server/daemon.h\"\n"}), IsEmpty());
  EXPECT_THAT(LayeringFaults({"base/a_test.cc", "#include \"base/testing/manual_clock.h\"\n"}),
              IsEmpty());
}

TEST(ThirdPartyRuleTest, RefusesStrayHeaders) {
  EXPECT_THAT(ThirdPartyFaults({"server/a.cc", "#include <ucp/api/ucp.h>\n"}),
              ElementsAre("server/a.cc:1: <ucp/api/ucp.h> belongs in transport/ucx/ alone"));
  for (const char* header : {"infiniband/verbs.h", "grpcpp/grpcpp.h", "openssl/ssl.h",
                             "rocksdb/db.h", "liburing.h", "cuda_runtime.h", "xxhash.h",
                             "proto/forebay/v1/pool.grpc.pb.h", "google/protobuf/arena.h"}) {
    EXPECT_EQ(ThirdPartyFaults({"tiers/a.h", absl::StrCat("#include <", header, ">\n")}).size(), 1u)
        << header;
  }
}

TEST(ThirdPartyRuleTest, AllowsThemAtHome) {
  EXPECT_THAT(ThirdPartyFaults({"transport/ucx/a.cc",
                                "#include <ucp/api/ucp.h>\n#include <infiniband/verbs.h>\n"}),
              IsEmpty());
  EXPECT_THAT(ThirdPartyFaults({"server/rpc/a.cc", "#include <grpcpp/grpcpp.h>\n"}), IsEmpty());
  EXPECT_THAT(ThirdPartyFaults({"base/sha256.cc", "#include <openssl/sha.h>\n"}), IsEmpty());
}

struct Snippet {
  const char* path;
  const char* text;
};

TEST(BannedWordRuleTest, RefusesEachWord) {
  const Snippet kBad[] = {
      {"base/a.cc", "// FIXME: later\n"},
      {"base/a.py", "# XXX\n"},
      {"base/a.h", "// TODO: later\n"},
      {"base/a.h", "// TODO(me): later\n"},
      {"deploy/a.md",
       "see /work"
       "/main/base\n"},
      {"base/a.cc", "void F() { throw 1; }\n"},
      {"base/a.cc", "void F() { try { G(); } catch (...) {} }\n"},
      {"transport/a.cc", "std::thread t;\n"},
      {"transport/a.cc", "auto f = std::async(F);\n"},
      {"base/a_test.cc", "std::this_thread::sleep_for(x);\n"},
      {"transport/a.cc", "usleep(1);\n"},
      {"transport/tcp/a.h", "absl::Mutex mutex_;\n"},
      {"server/get_op.cc", "std::mutex m;\n"},
      {"codec/a.cc", "cudaStreamSynchronize(s);\n"},
      {"codec/a.cc", "using namespace std;\n"},
      {"codec/a.cc", "assert(x);\n"},
      {"codec/a.cc", "sprintf(b, f);\n"},
  };
  for (const Snippet& snippet : kBad) {
    EXPECT_THAT(BannedWordFaults({snippet.path, snippet.text}), ::testing::Not(IsEmpty()))
        << snippet.text;
  }
}

TEST(BannedWordRuleTest, AllowsTheirNeighbours) {
  const Snippet kGood[] = {
      {"base/a.cc",
       "// We throw nothing, and try hard to catch that.\nconst char* s = \"throw\";\n"},
      {"base/a.h", "// TODO(#12): later\n"},
      {"server/main.cc", "int main() { try { Run(); } catch (...) { return 1; } }\n"},
      {"transport/a_test.cc", "std::thread t;\n"},
      {"server/daemon.cc", "std::thread t;\n"},
      {"tests/e2e/a.cc", "usleep(1);\n"},
      {"base/failpoint.cc", "nanosleep(&a, &a);\n"},
      {"base/metrics.h", "absl::Mutex mutex_;\n"},
      {"base/a.cc", "static_assert(x); entry(1); retry(2); Sleep(3);\n"},
  };
  for (const Snippet& snippet : kGood) {
    EXPECT_THAT(BannedWordFaults({snippet.path, snippet.text}), IsEmpty()) << snippet.text;
  }
}

std::string Function(int lines) {
  std::string text = "int F(int x) {\n";
  for (int i = 2; i < lines; ++i) text += "  if (x) { G(); }\n";
  return text + "}\n";
}

TEST(LimitRuleTest, CountsColumnsLinesAndFunctions) {
  EXPECT_THAT(LimitFaults({"base/a.h", std::string(101, 'x')}),
              ElementsAre("base/a.h:1: 101 columns, more than 100"));
  EXPECT_THAT(LimitFaults({"base/a.h", std::string(100, 'x')}), IsEmpty());
  std::string umlauts;
  for (int i = 0; i < 100; ++i) umlauts += "\u00fc";
  EXPECT_THAT(LimitFaults({"base/a.h", umlauts}), IsEmpty());

  EXPECT_THAT(LimitFaults({"base/a.h", std::string(601, '\n')}),
              ElementsAre("base/a.h: 601 lines, more than 600"));
  EXPECT_THAT(LimitFaults({"base/a.h", std::string(600, '\n')}), IsEmpty());

  EXPECT_THAT(LimitFaults({"base/a.cc", Function(70)}), IsEmpty());
  EXPECT_THAT(LimitFaults({"base/a.cc", Function(71)}),
              ElementsAre("base/a.cc:1: a function of 71 lines, more than 70"));
  EXPECT_THAT(LimitFaults({"base/a.md", std::string(101, 'x')}), IsEmpty());
}

TEST(LimitRuleTest, FindsFunctionsInsideNamespacesAndClasses) {
  for (const std::string& before :
       {std::string("namespace a {\nnamespace {\n"),
        std::string("class A final : public B {\n public:\n"),
        std::string("template <typename T>\nstruct A {\n  int x = 0;\n  int y[2] = {1, 2};\n"),
        std::string("#define X {\nextern \"C\" {\n"), std::string("enum class E { kA };\n")}) {
    EXPECT_EQ(LimitFaults({"base/a.cc", before + Function(71) + "}\n}\n"}).size(), 1u) << before;
    EXPECT_THAT(LimitFaults({"base/a.cc", before + Function(70) + Function(70) + "}\n}\n"}),
                IsEmpty())
        << before;
  }
  // A long table is no function.
  EXPECT_THAT(LimitFaults({"base/a.cc", "const std::function<void(int)> kTable[] = {\n" +
                                            std::string(100, '\n') + "};\n"}),
              IsEmpty());
}

TEST(HeaderRuleTest, WantsPragmaOnce) {
  EXPECT_EQ(HeaderFaults({"base/a.h", "#ifndef A\n#endif\n"}).size(), 1u);
  EXPECT_THAT(HeaderFaults({"base/a.h", "#pragma once\n"}), IsEmpty());
  EXPECT_THAT(HeaderFaults({"base/a.cc", ""}), IsEmpty());
}

TEST(InterfaceRuleTest, CountsPureVirtualsOfAClass) {
  const auto interface = [](int count) {
    std::string text = "class A {\n";
    for (int i = 0; i < count; ++i) {
      absl::StrAppend(&text, "  virtual int F", i, "(int x) const = 0;\n");
    }
    return text + "};\n";
  };
  EXPECT_THAT(InterfaceFaults({"base/a.h", interface(7)}),
              ElementsAre(HasSubstr("A has 7 pure virtual functions")));
  EXPECT_THAT(InterfaceFaults({"base/a.h", interface(6) + interface(6)}), IsEmpty());
}

TEST(CatalogueTest, ReadsOneSection) {
  EXPECT_THAT(CatalogueOf("# T\n## A\n- `x`: One.\n- `y` no colon\n### sub\n- `z`: Two.\n## B\n"
                          "- `w`: Three.\n",
                          "## A"),
              ElementsAre("x", "z"));
}

constexpr char kOperations[] =
    "## Metrics\n- `forebay_x_total`: X.\n"
    "## Failpoints\n- `server.x.do`: X.\n";

TEST(FailpointRuleTest, WantsEachNameOnceListedAndArmed) {
  const SourceFile product = {"server/a.cc", "FB_FAILPOINT(\"server.x.do\");\n"};
  const SourceFile test = {"server/a_test.cc", "Arm(\"server.x.do\");\n"};
  EXPECT_THAT(FailpointFaults({product, test}, kOperations), IsEmpty());
  EXPECT_THAT(
      FailpointFaults({product, {"tests/e2e/a.sh", "ARM='server.x.do=kill'\n"}}, kOperations),
      IsEmpty());

  EXPECT_THAT(FailpointFaults({product}, kOperations),
              ElementsAre(HasSubstr("server.x.do is armed by no test")));
  EXPECT_THAT(FailpointFaults({product, test, {"server/b.cc", product.text}}, kOperations),
              ElementsAre(HasSubstr("a name is one place")));
  EXPECT_THAT(FailpointFaults({product, test}, "## Failpoints\n"),
              ElementsAre(HasSubstr("server.x.do is not listed")));
  EXPECT_THAT(FailpointFaults({}, kOperations),
              ElementsAre(HasSubstr("lists server.x.do, which is not there")));
  EXPECT_THAT(FailpointFaults({{"tiers/a.cc", product.text}, test}, kOperations),
              ElementsAre(HasSubstr("is not named folder.noun.verb")));
  EXPECT_THAT(FailpointFaults({{"server/a.cc", "FB_FAILPOINT_HIT(\"server.do\")\n"},
                               {"server/a_test.cc", "Arm(\"server.do\");\n"}},
                              "## Failpoints\n- `server.do`: X.\n"),
              ElementsAre(HasSubstr("is not named folder.noun.verb")));
}

TEST(MetricRuleTest, WantsEachNameListed) {
  const SourceFile product = {"server/a.cc", "r.AddCounter(\"forebay_x_total\", \"X.\");\n"};
  EXPECT_THAT(MetricFaults({product}, kOperations), IsEmpty());
  EXPECT_THAT(MetricFaults({product}, "## Metrics\n"),
              ElementsAre("server/a.cc:1: forebay_x_total is not listed in docs/operations.md, "
                          "## Metrics"));
  EXPECT_THAT(MetricFaults({}, kOperations), ElementsAre(HasSubstr("lists forebay_x_total")));
  EXPECT_THAT(MetricFaults({{"server/a_test.cc", "\"forebay_test_only\""}}, "## Metrics\n"),
              IsEmpty());
}

TEST(BuildFileRuleTest, WantsEachSourceNamed) {
  const SourceFile source = {"tiers/dram/a_test.cc", ""};
  EXPECT_EQ(UnregisteredSourceFaults({source}).size(), 1u);
  EXPECT_EQ(
      UnregisteredSourceFaults({source, {"tiers/CMakeLists.txt", "TESTS b/a_test.cc"}}).size(), 1u);
  EXPECT_EQ(UnregisteredSourceFaults({source, {"base/CMakeLists.txt", "dram/a_test.cc"}}).size(),
            1u);
  EXPECT_EQ(UnregisteredSourceFaults({source, {"tiers/CMakeLists.txt", "dram/aa_test.cc"}}).size(),
            1u);
  EXPECT_THAT(UnregisteredSourceFaults({source, {"tiers/CMakeLists.txt", "(dram/a_test.cc)"}}),
              IsEmpty());
  EXPECT_THAT(UnregisteredSourceFaults({source, {"tiers/dram/CMakeLists.txt", "T a_test.cc\n"}}),
              IsEmpty());
}

TEST(BuildFileRuleTest, RefusesFakesInTheProduct) {
  EXPECT_THAT(
      TestingLinkFaults({"server/CMakeLists.txt",
                         "forebay_library(server\n  DEPS forebay::base forebay::testing)\n"}),
      ElementsAre("server/CMakeLists.txt: server must not link forebay::testing"));
  EXPECT_EQ(TestingLinkFaults({"server/CMakeLists.txt",
                               "forebay_program(forebayd SOURCES a.cc DEPS forebay::tier_testing)"})
                .size(),
            1u);
  EXPECT_EQ(TestingLinkFaults({"client/CMakeLists.txt",
                               "target_link_libraries(forebay_client PUBLIC GTest::gmock)"})
                .size(),
            1u);
  EXPECT_THAT(
      TestingLinkFaults({"server/CMakeLists.txt",
                         "forebay_library(server DEPS forebay::base TESTS a_test.cc\n"
                         "  TEST_DEPS forebay::transport_testing)  # forebay::testing\n"
                         "target_link_libraries(forebay_testing INTERFACE GTest::gmock)\n"}),
      IsEmpty());
  EXPECT_THAT(
      TestingLinkFaults({"tests/x/CMakeLists.txt", "forebay_library(x DEPS forebay::testing)"}),
      IsEmpty());
  EXPECT_THAT(TestingLinkFaults({"transport/CMakeLists.txt",
                                 "forebay_program(peer SOURCES testing/peer_main.cc\n"
                                 "  DEPS forebay::transport_testing)"}),
              IsEmpty());
}

TEST(CitationRuleTest, WantsTheCitedPage) {
  EXPECT_EQ(CitationFaults({"base/a.h",
                            "// see docs/"
                            "decisions/9999-nothing.md\n"})
                .size(),
            1u);
  EXPECT_THAT(CitationFaults({"base/a.h", "// see docs/GLOSSARY.md.\n"}), IsEmpty());
  EXPECT_THAT(CitationFaults({"deploy/a.md", "a\n[b](nothing.md)\n"}),
              ElementsAre("deploy/a.md:2: nothing.md is not there"));
  EXPECT_THAT(
      CitationFaults({"deploy/a.md", "[b](../docs/GLOSSARY.md#page) [c](https://x.org/y.md)\n"}),
      IsEmpty());
}

}  // namespace
}  // namespace forebay::tidy
