// Libraries that are found when the program runs and may be missing: nothing links them, so one
// binary starts everywhere. What is opened stays loaded until the process ends; its symbols are
// seen through FindSymbol alone.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace shoal {

// Where to look beside the loader's own places (LD_LIBRARY_PATH, ld.so.cache, /usr/lib): the
// folders that the environment variable names (colon separated; it may be unset), then ../lib
// beside the executable.
std::vector<std::string> LibraryFolders(const char* environment_variable);

// Opens the first of `names` (best first, e.g. "libcublasLt.so.13") that loads: each by its plain
// name, then in each folder. NotFound says for every name why not, in one line.
absl::StatusOr<void*> OpenLibrary(const std::vector<std::string>& names,
                                  const std::vector<std::string>& folders);

// The file that it was loaded from; empty where the loader does not say.
std::string PathOf(void* library);

// Null where the library has no such symbol.
void* FindSymbol(void* library, const char* symbol);
// Puts the symbol into a pointer to a function; whether there is one.
template <typename Function>
bool FindFunction(void* library, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(FindSymbol(library, symbol));
  return function != nullptr;
}

}  // namespace shoal
