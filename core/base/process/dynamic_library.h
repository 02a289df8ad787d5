// Libraries that are loaded at run time and may be missing: nothing links them, so one binary
// starts everywhere. What is opened stays loaded until the process ends; its symbols are reached
// only through FindSymbol.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace shoal {

// Returns where to look besides the loader's own places (LD_LIBRARY_PATH, ld.so.cache, /usr/lib):
// the folders that the environment variable names (colon separated; it may be unset), then ../lib
// next to the executable.
std::vector<std::string> LibraryFolders(const char* environment_variable);

// Opens the first of `names` (best first, e.g. "libcublasLt.so.13") that loads: each by its plain
// name, then in each folder. NotFound says in one line for every name why it did not load.
absl::StatusOr<void*> OpenLibrary(const std::vector<std::string>& names,
                                  const std::vector<std::string>& folders);

// Returns the file from which it was loaded; empty if the loader does not say.
std::string PathOf(void* library);

// Returns null if the library has no such symbol.
void* FindSymbol(void* library, const char* symbol);
// Assigns the symbol to a function pointer; returns whether it exists.
template <typename Function>
bool FindFunction(void* library, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(FindSymbol(library, symbol));
  return function != nullptr;
}

}  // namespace shoal
