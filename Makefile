# Thin conveniences for developers; everything here is one command of ./orb, which needs no make.
.PHONY: check lint test bench faults

check: lint test

lint test faults:
	./orb $@ $(ARGS)

# make bench NAME="fetch --short"; without NAME, the list
bench:
	./orb bench $(NAME)
