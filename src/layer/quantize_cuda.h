/* ---- Quantise and dequantise: kernels ---- */

#pragma once

