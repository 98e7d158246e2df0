// What nearly every test includes, compiled once for all of them: a third of the time that building
// the tests took. Tests still include what they use; this file is never included by name.

#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <variant>
#include <vector>
