#include "tests/support/processes.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace shoal::testing {

std::set<pid_t> ChildrenOf(pid_t parent) {
  std::set<pid_t> children;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) {
      continue;
    }
    std::ifstream stat(entry.path() / "stat");
    std::string text((std::istreambuf_iterator<char>(stat)), std::istreambuf_iterator<char>());
    const size_t end = text.rfind(')');
    int ppid = 0;
    char state = 'X';
    if (end != std::string::npos && sscanf(text.c_str() + end + 1, " %c %d", &state, &ppid) == 2 &&
        ppid == parent) {
      children.insert(std::stoi(name));
    }
  }
  return children;
}

std::string CommandOf(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline");
  std::string text;
  std::getline(file, text, '\0');
  return text;
}

bool Runs(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string word;
  char state = 'X';
  stat >> word >> word >> state;
  return stat && state != 'Z' && state != 'X';
}

}  // namespace shoal::testing
