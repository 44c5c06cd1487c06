/* ---- formats/convert ---- */
