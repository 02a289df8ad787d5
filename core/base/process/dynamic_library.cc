#include "core/base/process/dynamic_library.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/status.h"

namespace shoal {
namespace {

void* Open(const std::string& name, std::string& why) {
  void* library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* reason = ::dlerror();
    why = reason == nullptr ? name + ": unknown" : reason;
  }
  return library;
}

}  // namespace

std::vector<std::string> LibraryFolders(const char* environment_variable) {
  std::vector<std::string> folders;
  if (const char* named = std::getenv(environment_variable); named != nullptr) {
    folders = absl::StrSplit(named, ':', absl::SkipEmpty());
  }
  std::error_code error;
  const auto executable = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    folders.push_back((executable.parent_path().parent_path() / "lib").string());
  }
  return folders;
}

absl::StatusOr<void*> OpenLibrary(const std::vector<std::string>& names,
                                  const std::vector<std::string>& folders) {
  std::vector<std::string> reasons;
  for (const std::string& name : names) {
    std::string why;
    if (void* library = Open(name, why); library != nullptr) {
      return library;
    }
    for (const std::string& folder : folders) {
      // A file that exists and does not load says more than a plain name that was not found.
      const std::string path = folder + "/" + name;
      std::error_code error;
      if (!std::filesystem::exists(path, error)) {
        continue;
      }
      if (void* library = Open(path, why); library != nullptr) {
        return library;
      }
    }
    reasons.push_back(std::move(why));
  }
  return NotFound("{}", absl::StrJoin(reasons, "; "));
}

std::string PathOf(void* library) {
  link_map* map = nullptr;
  return ::dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr ? map->l_name : "";
}

void* FindSymbol(void* library, const char* symbol) { return ::dlsym(library, symbol); }

}  // namespace shoal
