// What a stream is connected to, and the few things drawn on a terminal: colour, tables. Nothing
// here writes by itself and nothing is global: whoever opens a stream describes it with
// DetectTerminal and hands the description down.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shoal::cli {

struct Terminal {
  bool interactive = false;  // a person is watching: a progress bar may be redrawn in place
  bool colour = false;
  int width = 80;  // columns
};

// Looks at the file descriptor and at NO_COLOR and TERM in the environment. Not interactive:
// neither colour nor bars.
Terminal DetectTerminal(int file_descriptor);
// The rule itself: NO_COLOR set to anything, or TERM=dumb, means no colour; TERM=dumb also means no
// bar.
Terminal DescribeTerminal(bool is_terminal, int columns, const char* no_color, const char* term);

enum class Colour { kRed, kGreen, kYellow, kDim, kBold };

// The text in that colour where the terminal shows colours, else the text itself.
std::string Paint(const Terminal& terminal, Colour colour, std::string_view text);

// Columns a text takes on screen: code points, a good enough count for what is printed here.
int DisplayWidth(std::string_view utf8);
// Shortened to at most `columns`, with "..." at the end where something was cut.
std::string Shorten(std::string_view utf8, int columns);
// Control characters made visible (\n as a two-character escape), so that a file's text cannot
// drive the terminal.
std::string MakePrintable(std::string_view utf8);

// A table with aligned columns. Numbers go right, text goes left.
class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // As many cells as there are columns.
  void Add(std::vector<std::string> cells);
  // With a title line; every line ends in a newline. `terminal` decides the colour of the titles
  // alone.
  std::string Render(const Terminal& terminal) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// 1234567 -> "1,234,567".
std::string WithThousands(int64_t value);
// 75 -> "1m15s"; 3700 -> "1h01m".
std::string FormatSeconds(double seconds);
// ", mfu 41%" for the end of a line; empty where it is 0, which is unknown.
std::string FormatMfu(double mfu);

}  // namespace shoal::cli
