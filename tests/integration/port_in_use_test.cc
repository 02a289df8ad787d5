// A port that the user chose and that is taken: one line that names it, and exit code 2.
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

#include "core/base/file.h"
#include "core/base/random.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/program.h"

namespace shoal::testing {
namespace {

using ::testing::HasSubstr;

// A port of this machine that others cannot have.
class TakenPort {
 public:
  TakenPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    socklen_t length = sizeof(address);
    auto* const bound = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(socket_.get(), bound, length), 0);
    EXPECT_EQ(listen(socket_.get(), 1), 0);
    EXPECT_EQ(getsockname(socket_.get(), bound, &length), 0);
    port_ = ntohs(address.sin_port);
  }
  int port() const { return port_; }

 private:
  UniqueFd socket_;
  int port_ = 0;
};

TEST(PortInUse, IsOneLineThatNamesThePortAndExitCodeTwo) {
  const TakenPort taken;
  const std::string port = std::to_string(taken.port());
  const std::string listen = "127.0.0.1:" + port;
  const std::string nobody = "127.0.0.1:1";  // never reached: the port is looked at first
  const std::vector<std::string> commands[] = {
      {"shoal-coordinator", "--listen", listen},
      {"shoal-coordinator", "--metrics-port", port},
      {"shoal-server", "--coordinator", nobody, "--listen", listen},
      {"shoal-server", "--coordinator", nobody, "--data-port", port},
      {"shoal-server", "--coordinator", nobody, "--metrics-port", port},
      {"shoal-worker", "--coordinator", nobody, "--metrics-port", port},
  };
  for (std::vector<std::string> command : commands) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(command, " ")));
    command.front() = BinDirectory() + "/" + command.front();
    Program program(command, {{"SHOAL_TOKEN", SecureToken()}});
    const ProgramResult result = program.Wait(absl::Seconds(20));
    EXPECT_EQ(result.exit_code, 2);
    const std::string said = result.output + result.errors;
    EXPECT_EQ(std::ranges::count(said, '\n'), 1) << said;
    EXPECT_THAT(said, HasSubstr(port));
    EXPECT_THAT(said, HasSubstr("Address already in use"));
  }
}

}  // namespace
}  // namespace shoal::testing
