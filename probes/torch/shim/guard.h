// The border between C++ and Rust: no exception crosses it.
#pragma once

#include <exception>
#include <string>

namespace ampdoctor {

// What the last failed call on this thread had to say; valid until the next one fails.
std::string& last_error() noexcept;

void remember_error(const char* what) noexcept;

// Runs `body`; 0 when it returned, 1 when it threw (then `last_error` says what).
template <typename Body>
int guarded(Body&& body) noexcept {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    remember_error(error.what());
  } catch (...) {
    remember_error("an exception that is no std::exception");
  }
  return 1;
}

}  // namespace ampdoctor

extern "C" {
// The message of the last call on this thread that returned 1; never null.
const char* ampdoctor_last_error() noexcept;
}
