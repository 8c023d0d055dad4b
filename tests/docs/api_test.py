#!/usr/bin/env python3
"""tools/site/api must show each kind of public name with its own comments, and refuse one without a comment."""
import pathlib
import re
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent.parent.parent / "tools/site/api"

HEADER = """// What the header is for.
#pragma once

namespace once {

// An enumeration.
enum class Colour {
  red,   // Behind red,
         // in two lines.
  blue,  // Behind blue.
};

template <class T>
struct Forward;

// A structure.
struct Options {
  // Above first.
  int first = 1;  // Behind first.
  int second{2};  // Behind second: `code` <b>.
  // Above third.
  //
  //   an example
  int third = 3;
  // These are limits.
  int low = 4;
  int high = 5;  // Behind high. NOLINT(a-check)

  // Above fourth.
  int fourth = 6;
};

// A class.
class Engine {
 public:
  // Above the constructor.
  explicit Engine(int size) : size_(size) {}
  Engine(Engine&& other) noexcept : size_(other.size_) {}
  Engine& operator=(Engine&& other) noexcept;
  Engine(const Engine&) = delete;
  ~Engine();
  [[nodiscard]] int size() const { return size_; }  // Behind size.
  // Within.
  struct Inner {
    bool on = true;  // Behind on.
  };

 protected:
  int guarded_ = 0;

 private:
  int size_ = 0;
};

// A concept.
template <class T>
concept Small = sizeof(T) < 4;

// A template.
template <class T>
struct Forward {
  T value = {};  // Behind value.
};

// An alias.
using Number = int;
// A constant.
inline constexpr int limit = 3;
// One overload.
void run(int times);
// The other overload.
template <class T>
void run(T what);

namespace detail {
struct Hidden {};
}  // namespace detail
}  // namespace once
"""


class Api(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.put("src/part/CMakeLists.txt", "once_component(part\n  SOURCES a.cpp\n  PUBLIC_HEADERS once/part.hpp\n  DEPENDS core)\n")

    def put(self, name, text):
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def run_on(self, header):
        self.put("include/once/part.hpp", header)
        return subprocess.run([SCRIPT, self.root / "out", self.root], capture_output=True, text=True, check=False)

    def page(self):
        done = self.run_on(HEADER)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return (self.root / "out/part.md").read_text()

    def test_types_and_functions_with_their_comments(self):
        page = self.page()
        self.assertIn("<p>What the header is for.</p>", page)
        self.assertIn("(../files/include/once/part.hpp.md)", page)
        sections = {name: re.sub(r"\s+", " ", text.partition("<dl")[0])
                    for name, text in re.findall(r"^### .*? \{ #(\S+) \}\n(.*?)(?=^##|\Z)", page, re.S | re.M)}
        self.assertEqual(sections, {name: f" ```cpp {code} ``` <p>{comment}</p> " for name, code, comment in [
            ("once-Colour", "enum class Colour", "An enumeration."),
            ("once-Options", "struct Options", "A structure."),
            ("once-Engine", "class Engine", "A class."),
            ("once-Engine-Inner", "struct Inner", "Within."),
            ("once-Small", "template <class T> concept Small = sizeof(T) < 4", "A concept."),
            ("once-Forward", "template <class T> struct Forward", "A template."),
            ("once-Number", "using Number = int", "An alias."),
            ("once-limit", "inline constexpr int limit = 3", "A constant."),
            ("once-run", "void run(int times)", "One overload."),
            ("once-run-2", "template <class T> void run(T what)", "The other overload.")]})

    def test_members_with_their_comments(self):
        members = dict(re.findall(r'<dt id="(.*?)">(.*?)</dd>', self.page(), re.S))
        self.assertEqual(members, {name: f"<code>{code}</code></dt><dd>{comment}" for name, code, comment in [
            ("once-Colour-red", "red", "<p>Behind red, in two lines.</p>"),
            ("once-Colour-blue", "blue", "<p>Behind blue.</p>"),
            ("once-Options-first", "int first = 1", "<p>Above first.</p><p>Behind first.</p>"),
            ("once-Options-second", "int second{2}", "<p>Behind second: <code>code</code> &lt;b&gt;.</p>"),
            ("once-Options-third", "int third = 3", "<p>Above third.</p><pre><code>an example</code></pre>"),
            ("once-Options-low", "int low = 4", "<p>These are limits.</p>"),
            ("once-Options-high", "int high = 5", "<p>These are limits.</p><p>Behind high.</p>"),
            ("once-Options-fourth", "int fourth = 6", "<p>Above fourth.</p>"),
            ("once-Engine-Engine", "explicit Engine(int size)", "<p>Above the constructor.</p>"),
            ("once-Engine-size", "[[nodiscard]] int size() const", "<p>Behind size.</p>"),
            ("once-Engine-Inner-on", "bool on = true", "<p>Behind on.</p>"),
            ("once-Forward-value", "T value = {}", "<p>Behind value.</p>")]})

    def test_the_index(self):
        self.page()
        self.assertIn("* [once/part.hpp](part.md#once-part-hpp)", (self.root / "out/index.md").read_text())
        self.assertIn("{ #once-part-hpp }", (self.root / "out/part.md").read_text())

    def test_a_name_without_a_comment(self):
        done = self.run_on(HEADER.replace("  // Behind second: `code` <b>.", "").replace("// A concept.\n", ""))
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr.split("\n")[:2], ["once::Options::second", "once::Small"])
        self.assertIn("write one", done.stderr)

    def test_a_comment_for_a_group(self):
        for word in ("These limits hold.", "Each of these is a limit.", "Both of these are limits."):
            self.assertEqual(self.run_on(HEADER.replace("These are limits.", word)).returncode, 0)
        for header in (HEADER.replace("These are limits.", "A limit."),
                       HEADER.replace("  int low = 4;\n", "  int low = 4;\n  // Between.\n  int middle = 5;\n"),
                       HEADER.replace("  int low = 4;\n", "  int low = 4;\n\n")):
            done = self.run_on(header.replace("  // Behind high.", "  //"))
            self.assertEqual((done.returncode, done.stderr.split("\n")[0]), (1, "once::Options::high"))

    def test_an_assignment_of_another_type(self):
        done = self.run_on(HEADER.replace("Engine& operator=(Engine&& other)", "Engine& operator=(const Options& other)"))
        self.assertEqual((done.returncode, done.stderr.split("\n")[0]), (1, "once::Engine::operator="))

    def test_a_broken_header(self):
        done = self.run_on(HEADER.replace("int first", "Missing first"))
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"include/once/part\.hpp:\d+: unknown type name 'Missing'")

    def test_a_member_without_an_initialiser(self):
        done = self.run_on(HEADER.replace("int first = 1;", "int first;").replace("bool on = true;", "bool on;"))
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr.split("\n")[:2], ["once::Engine::Inner::on", "once::Options::first"])
        self.assertIn("no initialiser", done.stderr)
        # Who makes it by a constructor leaves nothing out.
        self.assertEqual(self.run_on(HEADER.replace("int second{2};", "int second{2};  // Above it.\n  Options();"
                                                    ).replace("int first = 1;", "int first;")).returncode, 0)

    def test_a_header_of_no_component(self):
        self.put("include/once/other.hpp", "#pragma once\n")
        self.assertIn("include/once/other.hpp: in no component's PUBLIC_HEADERS", self.run_on(HEADER).stderr)


if __name__ == "__main__":
    unittest.main(verbosity=0)
