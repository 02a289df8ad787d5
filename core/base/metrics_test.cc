#include "core/base/metrics.h"

#include "civetweb.h"
#include "core/base/testing/local_name.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal {
namespace {

using ::testing::HasSubstr;

TEST(Metrics, CountsAndServes) {
  Metrics metrics;
  metrics.counter("shoal_test_total", "help", {{"op", "get"}}).Increment(2);
  metrics.counter("shoal_test_total", "help", {{"op", "get"}}).Increment();
  metrics.latency("shoal_test_seconds", "help").Observe(0.5);
  EXPECT_THAT(metrics.Text(), HasSubstr("shoal_test_total{op=\"get\"} 3"));
  const auto port = metrics.Serve(0, "127.0.0.1");
  ASSERT_TRUE(port.ok());
  EXPECT_GT(*port, 0);
  Metrics second;
  // A port in use is an error, not an exception.
  EXPECT_EQ(second.Serve(*port, "127.0.0.1").status().message(),
            fmt::format("cannot serve metrics on port {}: Address already in use; choose another "
                        "with --metrics-port",
                        *port));
  EXPECT_FALSE(second.Serve(65536, "127.0.0.1").ok());
  EXPECT_THAT(std::string(second.Serve(0, "nowhere.invalid").status().message()),
              HasSubstr("'nowhere.invalid'"));
}

// The answer to a GET, with its head.
std::string Get(int port, const std::string& path) {
  char error[256] = {};
  mg_connection* const connection = mg_download("127.0.0.1", port, 0, error, sizeof(error),
                                                "GET %s HTTP/1.0\r\n\r\n", path.c_str());
  EXPECT_NE(connection, nullptr) << error;
  const mg_response_info* const head = mg_get_response_info(connection);
  std::string text =
      fmt::format("{} {}\n", head->status_code, mg_get_header(connection, "Content-Type"));
  char part[4096];
  for (int got = 0; (got = mg_read(connection, part, sizeof(part))) > 0;) {
    text.append(part, static_cast<size_t>(got));
  }
  mg_close_connection(connection);
  return text;
}

TEST(Metrics, ServesPagesAsLongAsTheyLive) {
  Metrics metrics;
  metrics.counter("shoal_test_total", "help").Increment(2);
  const auto port = metrics.Serve(0, LocalName());
  ASSERT_TRUE(port.ok()) << port.status();
  EXPECT_THAT(Get(*port, "/metrics"), AllOf(HasSubstr("200 text/plain; version=0.0.4"),
                                            HasSubstr("\nshoal_test_total 2\n")));
  {
    const Metrics::Page page(metrics, "/targets", [] { return std::string("[1]"); });
    EXPECT_EQ(Get(*port, "/targets"), "200 application/json\n[1]");
  }
  EXPECT_THAT(Get(*port, "/targets"), ::testing::StartsWith("404"));
}

TEST(Metrics, OfAnInfoOnlyTheLastIsThere) {
  Metrics metrics;
  metrics.SetInfo("shoal_test_info", "help", {{"model", "first"}});
  metrics.SetInfo("shoal_test_info", "help", {{"model", "second"}});
  metrics.SetInfo("shoal_test_info", "help", {{"model", "second"}});
  EXPECT_THAT(metrics.Text(), HasSubstr("shoal_test_info{model=\"second\"} 1"));
  EXPECT_THAT(metrics.Text(), ::testing::Not(HasSubstr("first")));
}

}  // namespace
}  // namespace shoal
