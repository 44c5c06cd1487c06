#ifndef TEGROUP_H
#define TEGROUP_H
